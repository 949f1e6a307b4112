// SPDX-License-Identifier: Apache-2.0
// The hash travels on the wire and in fingerprints: its values are pinned, and every bit counts.
#include "oktopk/base/hash.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>

namespace oktopk::hash_test {
namespace {

TEST(Hash, values_are_pinned) {
  EXPECT_EQ(hash_text(""), 0xecba3df2c3383c52U);
  EXPECT_EQ(hash_text("oktopk"), 0x7c946be2e27de51eU);
  EXPECT_EQ(hash_text("oktopk", 7), 0xf4cc1cc2fb8dab33U);
}

TEST(Hash, every_flipped_bit_changes_many_bits) {
  std::array<std::byte, 24> bytes{};
  const std::uint64_t before = hash_bytes(bytes);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    const int changed = std::popcount(before ^ hash_bytes(bytes));
    EXPECT_GE(changed, 12) << "bit " << bit;
    EXPECT_NE(static_cast<std::uint32_t>(before), static_cast<std::uint32_t>(hash_bytes(bytes)));
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

TEST(Hash, order_and_length_count) {
  EXPECT_NE(hash_text("ab"), hash_text("ba"));
  EXPECT_NE(hash_text("a"), hash_text(std::string_view("a\0", 2)));
  EXPECT_NE(hash_text("a", 1), hash_text("a", 2));
}

}  // namespace
}  // namespace oktopk::hash_test
