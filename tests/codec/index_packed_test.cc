// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "tests/codec/index_payload.h"

namespace oktopk::testing::index_packed_test {
namespace {

TEST(IndexBitPacked, encode_writes_the_width_then_gaps_less_one) {
  // Gaps less one: 3, 0, 7, 1 with 3 bits each.
  EXPECT_EQ(payload_of(index_bit_packed(), {100, 200}, {103, 104, 112, 114}), (Numbers{3, 0xC3, 0x03}));
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

// 512 gaps in 16 lanes: field i is number i / 16 of lane i % 16, and a lane is every 16th word.
TEST(IndexBitPacked, encode_full_block_interleaves_16_lanes) {
  std::vector<Index> idx(512);
  Index next = 0;
  for (Index i = 0; i < 512; ++i) {
    idx[i] = next + i % 256;
    next = idx[i] + 1;
  }
  const Numbers payload = payload_of(index_bit_packed(), {0, 100000}, idx);
  ASSERT_EQ(payload.size(), 1 + 512u);
  EXPECT_EQ(payload[0], 8u);
  for (std::size_t i = 0; i < 512; ++i) {
    const std::size_t row = i / 16;
    EXPECT_EQ(payload[1 + row / 4 * 64 + i % 16 * 4 + row % 4], i % 256) << i;
  }
}

// Sums beyond 2^32 must not come back into the range from below.
TEST(IndexBitPacked, decode_full_block_that_wraps_around_throws) {
  for (const unsigned width : {22u, 23u, 24u, 32u}) {
    Numbers payload(1 + 64 * width, 0xFF);
    payload[0] = width;
    EXPECT_THROW(indices_of(index_bit_packed(), {0, 1u << 30}, 512, payload), CommError) << width;
    EXPECT_THROW(indices_of(index_bit_packed(), {0xFFFF0000u, 0xFFFFFFFFu}, 512, payload), CommError) << width;
  }
}

TEST(IndexBitPacked, decode_gap_behind_the_range_throws) {
  EXPECT_EQ(indices_of(index_bit_packed(), {0, 8}, 1, {3, 7}), (std::vector<Index>{7}));
  EXPECT_THROW(indices_of(index_bit_packed(), {0, 7}, 1, {3, 7}), CommError);
  EXPECT_THROW(indices_of(index_bit_packed(), {5, 12}, 2, {32, 0, 0, 0, 0, 255, 255, 255, 255}), CommError);
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

TEST(IndexBitPacked, encode_at_one_percent_takes_10_bits) { EXPECT_LE(bits_at_one_percent(index_bit_packed()), 10.1); }

TEST(IndexEliasFano, encode_writes_low_bits_then_unary_high_bits) {
  // 3, 10, 42, 99 of 100: 4 low bits each, high parts 0, 0, 2, 6 at bits 0, 1, 4, 9.
  EXPECT_EQ(payload_of(index_elias_fano(), {1000, 1100}, {1003, 1010, 1042, 1099}), (Numbers{0xA3, 0x3A, 0x13, 0x02}));
}

TEST(IndexEliasFano, encode_more_than_a_quarter_is_a_bitmap) {
  EXPECT_EQ(payload_of(index_elias_fano(), {0, 4}, {0, 1, 2, 3}), (Numbers{0x0F}));
  EXPECT_EQ(payload_of(index_elias_fano(), {0, 8}, {1, 4, 6}), (Numbers{0x52}));
  EXPECT_EQ(payload_of(index_elias_fano(), {0, 8}, {1, 6}), (Numbers{0x09, 0x05}));  // a quarter: low and high bits
}

TEST(IndexEliasFano, encode_full_block_interleaves_low_bits_in_16_lanes) {
  std::vector<Index> idx(512);
  for (Index i = 0; i < 512; ++i) idx[i] = 256 * i + (i * 37) % 256;
  const Numbers payload = payload_of(index_elias_fano(), {0, 512 * 256}, idx);
  for (std::size_t i = 0; i < 512; ++i) {
    const std::size_t row = i / 16;
    EXPECT_EQ(payload[row / 4 * 64 + i % 16 * 4 + row % 4], (i * 37) % 256) << i;
  }
  EXPECT_EQ(payload[512], 0x55u);  // every second bit: the high parts count up
}

TEST(IndexEliasFano, decode_wrong_number_of_ones_throws) {
  EXPECT_THROW(indices_of(index_elias_fano(), {1000, 1100}, 4, {0xA3, 0x3A, 0x03, 0x02}), CommError);
  EXPECT_THROW(indices_of(index_elias_fano(), {1000, 1100}, 4, {0xA3, 0x3A, 0x33, 0x02}), CommError);
}

TEST(IndexEliasFano, decode_equal_indices_throws) {
  EXPECT_THROW(indices_of(index_elias_fano(), {1000, 1100}, 4, {0x33, 0x3A, 0x13, 0x02}), CommError);
}

TEST(IndexEliasFano, decode_falling_low_bits_throws) {
  EXPECT_THROW(indices_of(index_elias_fano(), {1000, 1100}, 4, {0x3A, 0x3A, 0x13, 0x02}), CommError);
}

TEST(IndexEliasFano, decode_index_behind_the_range_throws) {
  EXPECT_THROW(indices_of(index_elias_fano(), {1000, 1100}, 4, {0xA3, 0x4A, 0x13, 0x02}), CommError);
}

TEST(IndexEliasFano, decode_padding_set_throws) {
  EXPECT_THROW(indices_of(index_elias_fano(), {1000, 1100}, 4, {0xA3, 0x3A, 0x03, 0x06}), CommError);
  // One index of 8: 3 low bits in the first byte.
  EXPECT_EQ(indices_of(index_elias_fano(), {0, 8}, 1, {0x07, 0x01}), (std::vector<Index>{7}));
  EXPECT_THROW(indices_of(index_elias_fano(), {0, 8}, 1, {0x0F, 0x01}), CommError);
}

TEST(IndexEliasFano, encode_at_one_percent_takes_8_6_bits) { EXPECT_LE(bits_at_one_percent(index_elias_fano()), 8.7); }

}  // namespace
}  // namespace oktopk::testing::index_packed_test
