// SPDX-License-Identifier: Apache-2.0
#include "oktopk/codec/bits.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace oktopk {
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
      const BitFields back(bytes, width);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(back[i], fields[i]) << width << ' ' << count << ' ' << i;
      }
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

TEST(Bits, for_each_one_visits_what_count_ones_counts) {
  std::mt19937_64 random(2);
  for (std::size_t size = 0; size < 30; ++size) {
    std::vector<std::byte> bytes(size);
    for (auto& b : bytes) b = static_cast<std::byte>(random() & random());
    std::vector<std::byte> rebuilt(size);
    std::size_t visits = 0;
    for_each_one(bytes, [&](std::size_t bit) {
      rebuilt[bit / 8] |= std::byte{1} << (bit % 8);
      ++visits;
    });
    EXPECT_EQ(rebuilt, bytes);
    EXPECT_EQ(visits, count_ones(bytes));
  }
}

}  // namespace
}  // namespace oktopk
