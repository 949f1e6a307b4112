// SPDX-License-Identifier: Apache-2.0
#include "lab/kernels/kernel_row.h"

#include <gtest/gtest.h>

#include <array>

namespace oktopk::kernel_row_test {
namespace {

constexpr std::array<Goal, 3> kGoals = {{{"scan", "x", 1.5}, {"slots own", "x", 2}, {"slots step P=1", "x", 3}}};
constexpr double kLarge = 1 << 24;

nlohmann::json reach_of(const std::string& kernel, double n) {
  const TimedPair times{{.median = 2}, {.median = 1}};
  return row_json({.kernel = kernel}, times, {"here", "data", n, n / 100}, kGoals)["reach"];
}

TEST(KernelRow, a_goal_is_for_its_kernel_at_any_number_of_ranks) {
  ASSERT_EQ(reach_of("slots own P=8", kLarge).size(), 1U);
  EXPECT_EQ(reach_of("slots own P=8", kLarge)[0]["met"], true);
  EXPECT_EQ(reach_of("scan", kLarge)[0]["met"], false);
  EXPECT_TRUE(reach_of("scanner", kLarge).empty());
  EXPECT_TRUE(reach_of("scan, fused", kLarge).empty());
}

TEST(KernelRow, a_goal_for_one_rank_is_not_for_more) {
  EXPECT_EQ(reach_of("slots step P=1", kLarge).size(), 1U);
  EXPECT_TRUE(reach_of("slots step P=16", kLarge).empty());
  EXPECT_TRUE(reach_of("slots step P=8", kLarge).empty());
}

TEST(KernelRow, few_elements_have_no_goal) { EXPECT_TRUE(reach_of("scan", kLarge - 1).empty()); }

}  // namespace
}  // namespace oktopk::kernel_row_test
