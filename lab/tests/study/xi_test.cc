// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lab/tests/study/small_task.h"

namespace oktopk::xi_test {
namespace {

// Two ranks, n = 4, k = 1. Mean of the accumulators: (1.5, 2, 1.75, 0), largest: 2 at index 1,
// which neither rank selects. Mean of the selections: (1.5, 0, 1.75, 0), largest: 1.75 at index 2.
XiState by_hand() { return {.accumulators = {{3, 2, 0, 0}, {0, 2, 3.5, 0}}, .gradient = {0, 0.3, 0.4, 0}}; }

TEST(Xi, equals_value_computed_by_hand) { EXPECT_DOUBLE_EQ(xi_of(by_hand(), 1), std::sqrt(2 * 2 + 1.75 * 1.75) / 0.5); }

TEST(Xi, takes_memory_into_both_sums) {
  XiState state = by_hand();
  state.memory = {0, 6, 0, 0};  // 5 against 3, both at index 1
  EXPECT_DOUBLE_EQ(xi_of(state, 1), 2 / 0.5);
}

TEST(Xi, compares_with_what_was_applied) {
  EXPECT_DOUBLE_EQ(xi_applied(by_hand(), {0, 2, 0, 0}, 1), 0);
  EXPECT_DOUBLE_EQ(xi_applied(by_hand(), {0, 1, 0, 0}, 1), 1 / 0.5);
}

TEST(Xi, is_zero_when_nothing_is_left_out) {
  EXPECT_EQ(xi_of(by_hand(), 4), 0);
  XiState alone = by_hand();
  alone.accumulators.pop_back();
  EXPECT_EQ(xi_of(alone, 1), 0);
}

TEST(Xi, is_infinite_without_gradient) {
  XiState state = by_hand();
  state.gradient = {0, 0, 0, 0};
  EXPECT_EQ(xi_of(state, 1), std::numeric_limits<double>::infinity());
}

TEST(Xi, top_prefers_smaller_indices_among_equals) {
  EXPECT_EQ(top_of({1, -2, 2, 2}, 2), (Dense{0, -2, 2, 0}));
  EXPECT_EQ(top_of({1, 2}, 5), (Dense{1, 2}));
}

nlohmann::json run(int P, double density, int steps = 12) {
  return study_xi(small_task(P, 2000, steps, density, "training")).rows;
}

TEST(Xi, measures_on_three_ranks) {
  for (const auto& row : run(3, 0.05)) {
    ASSERT_EQ(row["steps"].size(), 12u);
    EXPECT_EQ(row["steps"][3], 3);
    for (const double xi : row["xi"].get<Dense>()) EXPECT_GT(xi, 0);
    EXPECT_EQ(row["xi_applied"].size(), 12u);
    EXPECT_EQ(row["k"], std::lround(0.05 * row["n"].get<double>()));
  }
}

TEST(Xi, vanishes_on_one_rank_and_at_full_density) {
  EXPECT_EQ(run(1, 0.05)[0]["xi"].get<Dense>(), Dense(12, 0.0));
  EXPECT_EQ(run(3, 1)[0]["xi"].get<Dense>(), Dense(12, 0.0));
}

TEST(Xi, training_learns) {
  for (const auto& row : run(3, 0.1, 80)) {
    EXPECT_LE(row["n"], 2000);
    EXPECT_GT(row["n"], 1500);
    EXPECT_LT(row["last_loss"], 0.95 * row["first_loss"].get<double>());
  }
}

}  // namespace
}  // namespace oktopk::xi_test
