// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "tests/codec/index_payload.h"

namespace oktopk::testing {
namespace {

TEST(IndexBitPacked, encode_writes_the_width_then_gaps_less_one) {
  // Gaps less one: 3, 0, 7, 1 with 3 bits each.
  EXPECT_EQ(payload_of(index_bit_packed(), {100, 200}, {103, 104, 112, 114}),
            (Numbers{3, 0xC3, 0x03}));
}

TEST(IndexBitPacked, encode_neighbours_takes_one_byte_per_block) {
  std::vector<Index> idx(1000);
  for (Index i = 0; i < 1000; ++i) idx[i] = i;
  EXPECT_EQ(payload_of(index_bit_packed(), {0, 5000}, idx), (Numbers{0, 0}));
}

TEST(IndexBitPacked, encode_each_block_has_its_own_width) {
  std::vector<Index> idx(513);
  for (Index i = 0; i < 513; ++i) idx[i] = i;
  idx.back() = 512 + 255;
  EXPECT_EQ(payload_of(index_bit_packed(), {0, 5000}, idx), (Numbers{0, 8, 255}));
}

TEST(IndexBitPacked, decode_gap_behind_the_range_throws) {
  EXPECT_EQ(indices_of(index_bit_packed(), {0, 8}, 1, {3, 7}), (std::vector<Index>{7}));
  EXPECT_THROW(indices_of(index_bit_packed(), {0, 7}, 1, {3, 7}), CommError);
  EXPECT_THROW(indices_of(index_bit_packed(), {5, 12}, 2, {32, 0, 0, 0, 0, 255, 255, 255, 255}),
               CommError);
}

TEST(IndexBitPacked, decode_impossible_width_throws) {
  EXPECT_THROW(indices_of(index_bit_packed(), {0, 900}, 1, {33, 0, 0, 0, 0, 0}), CommError);
  EXPECT_THROW(indices_of(index_bit_packed(), {0, 900}, 1, {255, 0, 0, 0, 0, 0}), CommError);
}

TEST(IndexBitPacked, decode_block_cut_short_throws) {
  EXPECT_THROW(indices_of(index_bit_packed(), {0, 900}, 3, {8, 1, 2}), CommError);
  EXPECT_THROW(indices_of(index_bit_packed(), {0, 900}, 513, {0}), CommError);
}

TEST(IndexBitPacked, decode_bytes_left_over_throws) {
  EXPECT_THROW(indices_of(index_bit_packed(), {0, 900}, 1, {3, 7, 0}), CommError);
}

TEST(IndexBitPacked, decode_padding_set_throws) {
  EXPECT_THROW(indices_of(index_bit_packed(), {0, 900}, 1, {3, 0x0F}), CommError);
}

TEST(IndexBitPacked, encode_at_one_percent_takes_10_bits) {
  EXPECT_LE(bits_at_one_percent(index_bit_packed()), 10.1);
}

}  // namespace
}  // namespace oktopk::testing
