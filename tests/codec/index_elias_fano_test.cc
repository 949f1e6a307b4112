// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "tests/codec/index_payload.h"

namespace oktopk::testing::index_elias_fano_test {
namespace {

TEST(IndexEliasFano, encode_writes_low_bits_then_unary_high_bits) {
  // 3, 10, 42, 99 of 100: 4 low bits each, high parts 0, 0, 2, 6 at bits 0, 1, 4, 9.
  EXPECT_EQ(payload_of(index_elias_fano(), {1000, 1100}, {1003, 1010, 1042, 1099}), (Numbers{0xA3, 0x3A, 0x13, 0x02}));
}

TEST(IndexEliasFano, encode_every_index_takes_two_bits_each) {
  EXPECT_EQ(payload_of(index_elias_fano(), {0, 4}, {0, 1, 2, 3}), (Numbers{0x55}));
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
}  // namespace oktopk::testing::index_elias_fano_test
