// SPDX-License-Identifier: Apache-2.0
#include "oktopk/base/varint.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace oktopk::varint_test {
namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

Bytes bytes_of(std::initializer_list<unsigned> list) {
  Bytes bytes;
  for (const unsigned b : list) bytes.push_back(static_cast<std::byte>(b));
  return bytes;
}

// Every number with one bit more or less than a whole number of groups, and its neighbours.
std::vector<std::uint64_t> edges() {
  std::vector<std::uint64_t> all{0, 1, kMost};
  for (unsigned bit = 1; bit < 64; ++bit) {
    const std::uint64_t power = std::uint64_t{1} << bit;
    for (const std::uint64_t v : {power - 1, power, power + 1}) all.push_back(v);
  }
  return all;
}

TEST(Varint, append_gives_documented_bytes) {
  const auto appended = [](std::uint64_t value) {
    Bytes out;
    append_varint(value, out);
    return out;
  };
  EXPECT_EQ(appended(0), bytes_of({0}));
  EXPECT_EQ(appended(127), bytes_of({0x7F}));
  EXPECT_EQ(appended(128), bytes_of({0x80, 0x01}));
  EXPECT_EQ(appended(300), bytes_of({0xAC, 0x02}));
  EXPECT_EQ(appended(kMost), bytes_of({0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01}));
}

TEST(Varint, take_returns_what_was_appended_and_cuts_it_off) {
  Bytes out;
  std::size_t size = 0;
  for (const std::uint64_t value : edges()) {
    append_varint(value, out);
    size += varint_bytes(value);
    ASSERT_EQ(out.size(), size) << value;
    EXPECT_LE(varint_bytes(value), kMaxVarintBytes);
  }
  std::span<const std::byte> rest = out;
  for (const std::uint64_t value : edges()) {
    std::uint64_t got = 1;
    ASSERT_TRUE(take_varint(rest, got));
    EXPECT_EQ(got, value);
  }
  EXPECT_TRUE(rest.empty());
}

TEST(Varint, take_of_a_cut_number_fails_and_takes_nothing) {
  for (const std::uint64_t value : edges()) {
    Bytes out;
    append_varint(value, out);
    for (std::size_t size = 0; size < out.size(); ++size) {
      std::span<const std::byte> rest = std::span(out).first(size);
      std::uint64_t got = 0;
      EXPECT_FALSE(take_varint(rest, got));
      EXPECT_EQ(rest.size(), size);
    }
  }
}

TEST(Varint, take_of_a_number_too_long_or_too_large_fails) {
  const auto taken = [](const Bytes& bytes) {
    std::span<const std::byte> rest = bytes;
    std::uint64_t got = 0;
    return take_varint(rest, got);
  };
  EXPECT_FALSE(taken(bytes_of({0x80, 0x00})));
  EXPECT_FALSE(taken(bytes_of({0xFF, 0x80, 0x00})));
  EXPECT_FALSE(taken(bytes_of({0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x02})));
  EXPECT_FALSE(taken(bytes_of({0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01})));
}

TEST(Varint, zigzag_orders_by_magnitude_and_comes_back) {
  EXPECT_EQ(zigzag(0), 0u);
  EXPECT_EQ(zigzag(-1), 1u);
  EXPECT_EQ(zigzag(1), 2u);
  EXPECT_EQ(zigzag(-2), 3u);
  for (const std::int64_t v : {std::int64_t{0}, std::int64_t{-12345}, std::int64_t{1} << 40,
                               std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()})
    EXPECT_EQ(unzigzag(zigzag(v)), v);
}

}  // namespace
}  // namespace oktopk::varint_test
