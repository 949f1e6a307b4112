// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "tests/codec/index_payload.h"

namespace oktopk::testing::index_u16_blocks_test {
namespace {

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
}  // namespace oktopk::testing::index_u16_blocks_test
