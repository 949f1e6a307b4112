// SPDX-License-Identifier: Apache-2.0
#include "oktopk/cpu/bits.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace oktopk::bits_test {
namespace {

std::vector<std::byte> packed(const std::vector<std::uint32_t>& fields, unsigned width) {
  std::vector<std::byte> bytes(bytes_for_bits(fields.size() * width), std::byte{0xFF});
  pack_bits(fields.size(), width, bytes.data(), [&](std::size_t i) { return fields[i]; });
  return bytes;
}

TEST(Bits, unpack_any_width_and_count_returns_the_fields) {
  std::mt19937_64 random(1);
  for (unsigned width = 0; width <= 32; ++width) {
    for (std::size_t count = 0; count < 70; ++count) {
      std::vector<std::uint32_t> fields(count);
      for (auto& field : fields) field = static_cast<std::uint32_t>(random() & low_mask(width));
      const auto bytes = packed(fields, width);
      EXPECT_TRUE(padding_is_zero(bytes, count * width));
      std::vector<std::uint32_t> back(count);
      unpack_bits(bytes, width, back);
      ASSERT_EQ(back, fields) << width << ' ' << count;
    }
  }
}

TEST(Bits, pack_puts_the_first_field_lowest) {
  const auto bytes = packed({1, 2, 3, 4, 5}, 3);
  EXPECT_EQ(bytes, (std::vector{std::byte{0xD1}, std::byte{0x58}}));
}

TEST(Bits, padding_with_a_one_is_not_zero) {
  const std::vector<std::byte> bytes{std::byte{0}, std::byte{0x20}};
  EXPECT_TRUE(padding_is_zero(bytes, 14));
  EXPECT_FALSE(padding_is_zero(bytes, 13));
  EXPECT_TRUE(padding_is_zero(bytes, 16));
}

TEST(Bits, set_ones_at_any_positions_sets_them_and_no_other) {
  std::mt19937_64 random(2);
  for (std::size_t size = 1; size < 40; ++size) {
    std::vector<std::byte> want(size);
    for (auto& b : want) b = static_cast<std::byte>(random() & random());
    std::vector<std::size_t> positions;
    for (std::size_t i = 0; i < 8 * size; ++i) {
      if (std::to_integer<unsigned>(want[i / 8] >> (i % 8)) % 2 != 0) positions.push_back(i);
    }
    std::vector<std::byte> got(size + 7);
    set_ones(positions.size(), got.data(), [&](std::size_t i) { return positions[i]; });
    got.resize(size);
    EXPECT_EQ(got, want);
  }
}

}  // namespace
}  // namespace oktopk::bits_test
