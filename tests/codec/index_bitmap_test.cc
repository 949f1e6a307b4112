// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "tests/codec/index_payload.h"

namespace oktopk::testing::index_bitmap_test {
namespace {

TEST(IndexBitmap, encode_sets_one_bit_per_index) {
  EXPECT_EQ(payload_of(index_bitmap(), {3, 14}, {3, 5, 10, 13}), (Numbers{0x85, 0x04}));
}

TEST(IndexBitmap, decode_wrong_number_of_ones_throws) {
  EXPECT_THROW(indices_of(index_bitmap(), {3, 14}, 4, {0x85, 0x00}), CommError);
  EXPECT_THROW(indices_of(index_bitmap(), {3, 14}, 4, {0x87, 0x04}), CommError);
}

TEST(IndexBitmap, decode_bit_behind_the_range_throws) {
  EXPECT_EQ(indices_of(index_bitmap(), {3, 14}, 1, {0, 0x04}), (std::vector<Index>{13}));
  EXPECT_THROW(indices_of(index_bitmap(), {3, 14}, 1, {0, 0x08}), CommError);
}

TEST(IndexBitmap, encode_at_one_percent_takes_100_bits) { EXPECT_NEAR(bits_at_one_percent(index_bitmap()), 100, 2); }

}  // namespace
}  // namespace oktopk::testing::index_bitmap_test
