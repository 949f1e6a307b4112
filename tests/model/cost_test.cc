// SPDX-License-Identifier: Apache-2.0
#include "oktopk/model/cost.h"

#include <gtest/gtest.h>

namespace oktopk {
namespace {

TEST(Cost, ceil_log2_is_the_smallest_sufficient_exponent) {
  EXPECT_EQ(ceil_log2(1), 0);
  for (int P = 2; P <= 1025; ++P) {
    const int L = ceil_log2(P);
    EXPECT_GE(1 << L, P);
    EXPECT_LT(1 << (L - 1), P);
  }
}

TEST(Problem, union_of_disjoint_supports_adds_up_to_n) {
  const Problem problem{.n = 1000, .k = 100, .P = 16, .union_exponent = 1};
  EXPECT_DOUBLE_EQ(problem.union_of(1), 100);
  EXPECT_DOUBLE_EQ(problem.union_of(4), 400);
  EXPECT_DOUBLE_EQ(problem.union_of(10), 1000);
  EXPECT_DOUBLE_EQ(problem.union_of(16), 1000);
}

TEST(Problem, union_of_equal_supports_is_one_support) {
  const Problem problem{.n = 1000, .k = 100, .P = 16, .union_exponent = 0};
  EXPECT_DOUBLE_EQ(problem.union_of(16), 100);
}

TEST(Problem, union_of_overlapping_supports_follows_the_exponent) {
  const Problem problem{.n = 1e6, .k = 100, .P = 16, .union_exponent = 0.5};
  EXPECT_DOUBLE_EQ(problem.union_of(16), 400);
}

TEST(Problem, union_of_less_than_one_rank_is_one_selection) {
  const Problem problem{.n = 1000, .k = 100, .P = 16, .union_exponent = 1};
  EXPECT_DOUBLE_EQ(problem.union_of(0.25), 100);
}

TEST(Problem, result_is_k_unless_said_otherwise) {
  EXPECT_DOUBLE_EQ((Problem{.n = 1000, .k = 100}).result(), 100);
  EXPECT_DOUBLE_EQ((Problem{.n = 1000, .k = 100, .gathered = 130}).result(), 130);
}

TEST(Cost, sums_by_component) {
  const Cost sum = Cost{1, 20, 300} + Cost{4, 50, 600};
  EXPECT_DOUBLE_EQ(sum.messages, 5);
  EXPECT_DOUBLE_EQ(sum.bytes, 70);
  EXPECT_DOUBLE_EQ(sum.reduced, 900);
}

TEST(Cost, seconds_weighs_each_component_with_its_own_price) {
  const Machine machine{.alpha = 1e-6, .beta = 1e-9, .gamma = 1e-10};
  EXPECT_DOUBLE_EQ(seconds({10, 0, 0}, machine), 1e-5);
  EXPECT_DOUBLE_EQ(seconds({0, 1e6, 0}, machine), 1e-3);
  EXPECT_DOUBLE_EQ(seconds({0, 0, 1e6}, machine), 1e-4);
  EXPECT_DOUBLE_EQ(seconds({10, 1e6, 1e6}, machine), 1e-5 + 1e-3 + 1e-4);
}

}  // namespace
}  // namespace oktopk
