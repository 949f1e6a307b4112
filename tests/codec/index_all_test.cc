// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/codec/index_payload.h"

namespace oktopk::testing::index_all_test {
namespace {

TEST(IndexAll, encode_writes_nothing) { EXPECT_EQ(payload_of(index_all(), {7, 10}, {7, 8, 9}), Numbers{}); }

TEST(IndexAll, decode_counts_from_the_begin_of_the_range) {
  EXPECT_EQ(indices_of(index_all(), {7, 10}, 3, {}), (std::vector<Index>{7, 8, 9}));
}

}  // namespace
}  // namespace oktopk::testing::index_all_test
