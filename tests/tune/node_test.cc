// SPDX-License-Identifier: Apache-2.0
#include "oktopk/tune/node.h"

#include <gtest/gtest.h>

#include "oktopk/codec/frame.h"

namespace oktopk::node_test {
namespace {

TEST(NodeCost, is_nothing_for_a_rank_alone) {
  for (const Cost& cost : {node_sum_cost(1e6, 1), node_share_entries_cost(10, 1), node_share_values_cost(1e6, 1)}) {
    EXPECT_EQ(cost.bytes, 0);
    EXPECT_EQ(cost.messages, 0);
  }
}

TEST(NodeCost, sums_long_vectors_by_regions) {
  const Cost cost = node_sum_cost(1e6, 4);
  EXPECT_DOUBLE_EQ(cost.bytes, 2 * 4 * 750e3);
  EXPECT_DOUBLE_EQ(cost.messages, 2 + 3);
  EXPECT_DOUBLE_EQ(cost.rounds, 2 + 1);
}

TEST(NodeCost, sums_short_vectors_and_pairs_along_a_tree) {
  EXPECT_DOUBLE_EQ(node_sum_cost(1000, 8).bytes, 3 * 4000);
  EXPECT_DOUBLE_EQ(node_sum_cost(1e6, 2).bytes, 4e6);
}

TEST(NodeCost, shares_a_sparse_result_in_two_frames) {
  EXPECT_DOUBLE_EQ(node_share_entries_cost(100, 8).bytes,
                   3 * (2.0 * static_cast<double>(frame_head_bytes({}, 100)) + 800));
  EXPECT_DOUBLE_EQ(node_share_values_cost(1000, 8).bytes, 3 * 4000);
}

}  // namespace
}  // namespace oktopk::node_test
