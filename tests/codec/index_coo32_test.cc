// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "tests/codec/index_payload.h"

namespace oktopk::testing::index_coo32_test {
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

}  // namespace
}  // namespace oktopk::testing::index_coo32_test
