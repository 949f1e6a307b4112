// SPDX-License-Identifier: Apache-2.0
#include "oktopk/model/node.h"

#include <gtest/gtest.h>

namespace oktopk {
namespace {

TEST(NodeCost, is_nothing_for_a_rank_alone) {
  EXPECT_EQ(node_cost(1000, 10, 1).bytes, 0);
  EXPECT_EQ(node_cost(1000, 0, 1).messages, 0);
}

TEST(NodeCost, moves_the_gradient_to_the_leader_and_the_result_back) {
  const Cost cost = node_cost(1000, 10, 4);
  EXPECT_DOUBLE_EQ(cost.bytes, 4 * 750 + 4 * 750 + 2 * 80);
  EXPECT_DOUBLE_EQ(cost.messages, 2 + 3 + 2);
  EXPECT_DOUBLE_EQ(node_cost(1000, 0, 4).bytes, 4 * 750 + 4 * 750 + 2 * 4000);
}

}  // namespace
}  // namespace oktopk
