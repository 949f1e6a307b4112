// SPDX-License-Identifier: Apache-2.0
#include "oktopk/tune/cost.h"

#include <gtest/gtest.h>

#include <utility>

#include "oktopk/codec/frame.h"
#include "oktopk/tune/profile.h"

namespace oktopk::cost_test {
namespace {

TEST(Cost, ceil_log2_is_the_smallest_sufficient_exponent) {
  EXPECT_EQ(ceil_log2(1), 0);
  for (int P = 2; P <= 1025; ++P) {
    const int L = ceil_log2(P);
    EXPECT_GE(1 << L, P);
    EXPECT_LT(1 << (L - 1), P);
  }
}

TEST(Problem, union_of_m_ranks_follows_the_curve_of_the_problem) {
  const Problem independent{.n = 1000, .k = 100, .P = 16};  // misses what nobody chose
  for (const auto& [ranks, entries] : {std::pair{0.25, 100.0}, {1.0, 100.0}, {2.0, 190.0}, {3.0, 271.0}})
    EXPECT_NEAR(independent.union_of(ranks), entries, 1e-9);
  EXPECT_EQ((Problem{.n = 10, .k = 10}).union_of(4), 10);
  EXPECT_EQ((Problem{.n = 10, .k = 0}).union_of(4), 0);
  const Problem disjoint{.n = 1000, .k = 100, .P = 16, .disjoint = true};
  for (const auto& [ranks, entries] : {std::pair{1, 100.0}, {4, 400.0}, {10, 1000.0}, {16, 1000.0}})
    EXPECT_DOUBLE_EQ(disjoint.union_of(ranks), entries);
  EXPECT_DOUBLE_EQ((Problem{.n = 1000, .k = 100, .P = 16, .union_exponent = 0}).union_of(16), 100);
  const Problem half{.n = 1e6, .k = 100, .P = 16, .union_exponent = 0.5};
  EXPECT_DOUBLE_EQ(half.union_of(16), (Problem{.n = 1e6, .k = 100, .P = 16}).union_of(4));
  EXPECT_NEAR(half.union_of(16), 400, 1);
}

TEST(Problem, exponent_of_is_the_inverse_of_union_of) {
  for (const double g : {0.1, 0.5, 0.9, 1.0}) {
    const Problem problem{.n = 1e6, .k = 1e4, .P = 24, .union_exponent = g};
    EXPECT_NEAR(problem.exponent_of(problem.union_of(24)), g, 1e-9);
  }
  const Problem problem{.n = 1e6, .k = 1e4, .P = 24};
  EXPECT_EQ(problem.exponent_of(1e4), 0);
  EXPECT_EQ(problem.exponent_of(10), 0);
  EXPECT_EQ(problem.exponent_of(1e6), 1);
  EXPECT_EQ((Problem{.n = 1e6, .k = 1e4, .P = 1}).exponent_of(1e4), 0);
}

TEST(Problem, result_is_k_unless_said_otherwise) {
  EXPECT_DOUBLE_EQ((Problem{.n = 1000, .k = 100}).result(), 100);
  EXPECT_DOUBLE_EQ((Problem{.n = 1000, .k = 100, .gathered = 130}).result(), 130);
}

TEST(Cost, sums_by_component) {
  const Cost sum = Cost{1, 20, 300, 7, 2, 3, 4} + Cost{4, 50, 600, 8, 1, 5, 6};
  EXPECT_DOUBLE_EQ(sum.messages, 5);
  EXPECT_DOUBLE_EQ(sum.bytes, 70);
  EXPECT_DOUBLE_EQ(sum.entries, 900);
  EXPECT_DOUBLE_EQ(sum.values, 15);
  EXPECT_DOUBLE_EQ(sum.rounds, 3);
  EXPECT_DOUBLE_EQ(sum.scattered, 8);
  EXPECT_DOUBLE_EQ(sum.following, 10);
}

TEST(Cost, messages_one_after_the_other_are_rounds_and_those_at_once_share_one) {
  EXPECT_EQ(sequential(4, 100, 20, 5).rounds, 4);
  EXPECT_EQ(sequential(4, 100, 20, 5).scattered, 0);
  EXPECT_EQ(concurrent(7, 100, 20).rounds, 1);
  EXPECT_EQ(concurrent(7, 100, 20).scattered, 100);
  EXPECT_EQ(concurrent(7, 100, 20, 4).rounds, 2);
  EXPECT_EQ(concurrent(1, 100, 20).scattered, 0);
  EXPECT_EQ(concurrent(1, 100, 20).following, 0);
  EXPECT_DOUBLE_EQ(concurrent(5, 100, 20).following, 80);
  EXPECT_DOUBLE_EQ(concurrent(8, 100, 20, 4).following, 75);
}

TEST(Cost, seconds_of_a_round_overlap_sending_and_the_wire) {
  const Machine machine{.alpha = 1e-6, .beta = 1e-9, .overhead = 4e-6, .contention = 2};
  // 1 us on the wire, 2 us to send: the sender is the slower one, the last message waits for it.
  EXPECT_DOUBLE_EQ(seconds(concurrent(5, 2500), machine), 1e-6 + 5 * 4e-6 + 1e-6);
  // 10 us on the wire: all but the first are sent meanwhile.
  EXPECT_DOUBLE_EQ(seconds(concurrent(5, 25000), machine), 1e-6 + 2e-6 + 5 * 2e-6 + 5 * 10e-6);
  // One after the other, nothing overlaps.
  EXPECT_DOUBLE_EQ(seconds(sequential(5, 25000), machine), 5 * (1e-6 + 4e-6 + 5e-6));
}

TEST(Cost, seconds_weighs_each_component_with_its_own_price) {
  const Machine machine{
      .alpha = 1e-6, .beta = 1e-9, .gamma = 1e-10, .overhead = 2e-7, .contention = 1.5, .delta = 1e-11};
  EXPECT_DOUBLE_EQ(seconds({.rounds = 10}, machine), 1e-5);
  EXPECT_DOUBLE_EQ(seconds({.messages = 10}, machine), 2e-6);
  EXPECT_DOUBLE_EQ(seconds({.bytes = 1e6}, machine), 1e-3);
  EXPECT_DOUBLE_EQ(seconds({.bytes = 1e6, .scattered = 1e6}, machine), 1.5e-3);
  EXPECT_DOUBLE_EQ(seconds({.entries = 1e6}, machine), 1e-4);
  EXPECT_DOUBLE_EQ(seconds({.values = 1e6}, machine), 1e-5);
}

TEST(NodeCost, sums_and_shares_by_regions_or_along_a_tree) {
  for (const Cost& cost : {node_sum_cost(1e6, 1), node_share_entries_cost(10, 1), node_share_values_cost(1e6, 1)}) {
    EXPECT_EQ(cost.bytes, 0);
    EXPECT_EQ(cost.messages, 0);
  }
  const Cost cost = node_sum_cost(1e6, 4);  // long vectors by regions
  EXPECT_DOUBLE_EQ(cost.bytes, 2 * 4 * 750e3);
  EXPECT_DOUBLE_EQ(cost.messages, 2 + 3);
  EXPECT_DOUBLE_EQ(cost.rounds, 2 + 1);
  EXPECT_DOUBLE_EQ(node_sum_cost(1000, 8).bytes, 3 * 4000);  // short ones and pairs along a tree
  EXPECT_DOUBLE_EQ(node_sum_cost(1e6, 2).bytes, 4e6);
  EXPECT_EQ(node_sum_cost(1e6, 2).messages, 1);
  const auto head = static_cast<double>(frame_head_bytes({}, 100));  // a sparse result in two frames
  EXPECT_DOUBLE_EQ(node_share_entries_cost(100, 8).bytes, 3 * (2 * head + 800));
  EXPECT_DOUBLE_EQ(node_share_values_cost(1000, 8).bytes, 3 * 4000);
}

}  // namespace
}  // namespace oktopk::cost_test
