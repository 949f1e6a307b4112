// SPDX-License-Identifier: Apache-2.0
#include "tools/choice.h"

#include <gtest/gtest.h>

namespace oktopk::choice_test {
namespace {

TEST(Crossover, finds_the_nearest_change_in_both_directions) {
  const auto inside = [](double x) { return x > 10 && x < 1000; };
  EXPECT_NEAR(crossover(inside, 100, 1e9).value(), 1000, 2);
  EXPECT_NEAR(crossover(inside, 100, 1e-3).value(), 10, 0.02);
  EXPECT_NEAR(crossover(inside, 1e6, 1).value(), 1000, 2);  // not the one at 10
  EXPECT_NEAR(crossover(inside, 900, 1001).value(), 1000, 2);
}

TEST(Crossover, finds_nothing_where_nothing_changes) {
  const auto small = [](double x) { return x < 1000; };
  EXPECT_FALSE(crossover(small, 100, 999));
  EXPECT_FALSE(crossover(small, 100, 1));
  EXPECT_FALSE(crossover(small, 100, 100));
}

bool chooses_dense(const Problem& problem, const Profile& profile) {
  return rank_candidates(problem, profile, {}).front().method.preset == "dense";
}

TEST(Crossover, of_a_choice_is_where_the_choice_changes) {
  const Problem problem{.n = 4e6, .k = 4e4, .P = 8};
  Profile profile;
  profile.machine.sigma = 1e-9;  // selecting is dear: a fast network makes dense the better one
  const Crossovers found = find_crossovers(problem, profile, {});
  EXPECT_FALSE(found.dense_wins);
  ASSERT_TRUE(found.at.at("density_above"));
  Problem other = problem;
  other.k = problem.n * *found.at.at("density_above") * 1.01;
  EXPECT_TRUE(chooses_dense(other, profile));
  other.k = problem.n * *found.at.at("density_above") * 0.99;
  EXPECT_FALSE(chooses_dense(other, profile));
  ASSERT_TRUE(found.at.at("beta_below"));
  EXPECT_FALSE(found.at.at("beta_above"));
  Profile faster = profile;
  faster.machine.beta = *found.at.at("beta_below") * 0.99;
  EXPECT_TRUE(chooses_dense(problem, faster));
  faster.machine.beta = *found.at.at("beta_below") * 1.01;
  EXPECT_FALSE(chooses_dense(problem, faster));

  const Crossovers reverse = find_crossovers(problem, faster, {});
  EXPECT_FALSE(reverse.dense_wins);
}

TEST(Crossover, of_a_choice_leaves_rules_out_and_sees_dense_win) {
  const Problem problem{.n = 4e6, .k = 2e6, .P = 4};
  const Crossovers found = find_crossovers(problem, {}, {.overrides = Overrides::parse("topka")});
  EXPECT_TRUE(found.dense_wins);
  ASSERT_TRUE(found.at.at("density_below"));
  EXPECT_LT(*found.at.at("density_below"), 0.5);
  Problem other = problem;
  other.k = problem.n * *found.at.at("density_below") * 0.99;
  EXPECT_FALSE(chooses_dense(other, {}));
}

}  // namespace
}  // namespace oktopk::choice_test
