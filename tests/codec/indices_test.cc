// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "tests/codec/index_payload.h"

namespace oktopk::testing::indices_test {
namespace {

TEST(IndexCoo32, encode_writes_offsets_into_the_range) {
  EXPECT_EQ(payload_of(index_coo32(), {1000, 2000}, {1001, 1515}), (Numbers{1, 0, 0, 0, 3, 2, 0, 0}));
}

TEST(IndexCoo32, decode_repeated_index_throws) {
  EXPECT_THROW(indices_of(index_coo32(), {0, 9}, 2, {3, 0, 0, 0, 3, 0, 0, 0}), CommError);
}

TEST(IndexCoo32, decode_falling_index_throws) {
  EXPECT_THROW(indices_of(index_coo32(), {0, 9}, 2, {3, 0, 0, 0, 2, 0, 0, 0}), CommError);
}

TEST(IndexCoo32, decode_index_behind_the_range_throws) {
  EXPECT_EQ(indices_of(index_coo32(), {5, 14}, 1, {8, 0, 0, 0}), (std::vector<Index>{13}));
  EXPECT_THROW(indices_of(index_coo32(), {5, 14}, 1, {9, 0, 0, 0}), CommError);
  EXPECT_THROW(indices_of(index_coo32(), {5, 14}, 1, {255, 255, 255, 255}), CommError);
}

TEST(IndexCoo32, encode_takes_32_bits) { EXPECT_EQ(bits_at_one_percent(index_coo32()), 32); }

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

TEST(IndexAll, encode_writes_nothing) { EXPECT_EQ(payload_of(index_all(), {7, 10}, {7, 8, 9}), Numbers{}); }

TEST(IndexAll, decode_counts_from_the_begin_of_the_range) {
  EXPECT_EQ(indices_of(index_all(), {7, 10}, 3, {}), (std::vector<Index>{7, 8, 9}));
}

constexpr Range kTwoBlocks{10, 10 + 65536 + 100};

TEST(IndexU16Blocks, encode_writes_counts_then_offsets) {
  EXPECT_EQ(payload_of(index_u16_blocks(), kTwoBlocks, {10, 10 + 65535, 10 + 65536 + 99}),
            (Numbers{2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 255, 255, 99, 0}));
}

TEST(IndexU16Blocks, encode_full_block_counts_65536) {
  std::vector<Index> idx(65536);
  for (Index i = 0; i < 65536; ++i) idx[i] = i;
  const Numbers payload = payload_of(index_u16_blocks(), {0, 65536}, idx);
  EXPECT_EQ((Numbers{payload.begin(), payload.begin() + 4}), (Numbers{0, 0, 1, 0}));
  EXPECT_EQ(indices_of(index_u16_blocks(), {0, 65536}, 65536, payload), idx);
}

TEST(IndexU16Blocks, decode_counts_that_do_not_add_up_throws) {
  EXPECT_THROW(indices_of(index_u16_blocks(), kTwoBlocks, 1, {0, 0, 0, 0, 0, 0, 0, 0, 5, 0}), CommError);
  EXPECT_THROW(indices_of(index_u16_blocks(), kTwoBlocks, 1, {1, 0, 0, 0, 1, 0, 0, 0, 5, 0}), CommError);
  EXPECT_THROW(indices_of(index_u16_blocks(), kTwoBlocks, 1, {255, 255, 255, 255, 0, 0, 0, 0, 5, 0}), CommError);
}

TEST(IndexU16Blocks, decode_offset_behind_the_range_throws) {
  EXPECT_THROW(indices_of(index_u16_blocks(), kTwoBlocks, 1, {0, 0, 0, 0, 1, 0, 0, 0, 100, 0}), CommError);
}

TEST(IndexU16Blocks, decode_offset_that_wraps_around_throws) {
  const Range top{0xFFFFFFF0u, 0xFFFFFFFFu};
  EXPECT_EQ(indices_of(index_u16_blocks(), top, 1, {1, 0, 0, 0, 14, 0}), (std::vector<Index>{0xFFFFFFFEu}));
  EXPECT_THROW(indices_of(index_u16_blocks(), top, 1, {1, 0, 0, 0, 18, 0}), CommError);
}

TEST(IndexU16Blocks, decode_repeated_offset_throws) {
  EXPECT_THROW(indices_of(index_u16_blocks(), {0, 100}, 2, {2, 0, 0, 0, 5, 0, 5, 0}), CommError);
}

TEST(IndexU16Blocks, encode_at_one_percent_takes_16_bits) { EXPECT_LE(bits_at_one_percent(index_u16_blocks()), 16.06); }

}  // namespace
}  // namespace oktopk::testing::indices_test
