// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tools/study/xi.h"

#include <cmath>
#include <limits>

#include "tests/support/world.h"
#include "tools/study/stream.h"
#include "tools/study/training.h"

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

std::vector<XiRun> run(int P, const std::string& preset, double density) {
  return gather_world("threads", P, [&](Communicator& comm) {
    const Source source = make_source({.data = "calm", .n = 300, .steps = 12}, comm.rank());
    XiOptions options{.weights = std::vector<float>(300), .steps = 12, .every = 3};
    options.reducer.preset = preset;
    options.reducer.density = density;
    return measure_xi(comm, options, [&](int step, std::span<const float>, std::span<float> gradient) {
      std::vector<float> out;
      source(step, out);
      std::copy(out.begin(), out.end(), gradient.begin());
      return 1.0;
    });
  });
}

TEST(Xi, measures_on_three_ranks) {
  for (const char* preset : {"oktopk", "circulant"}) {
    const XiRun r = run(3, preset, 0.05).front();
    EXPECT_EQ(r.steps, (std::vector<double>{0, 3, 6, 9}));
    ASSERT_EQ(r.xi.size(), 4U);
    for (const double xi : r.xi) EXPECT_GT(xi, 0);
    EXPECT_EQ(r.k, 15U);
  }
}

TEST(Xi, vanishes_on_one_rank_and_at_full_density) {
  const XiRun alone = run(1, "oktopk", 0.05).front();
  const XiRun full = run(3, "oktopk", 1).front();
  EXPECT_EQ(alone.xi, std::vector<double>(4, 0.0));
  EXPECT_EQ(full.xi, std::vector<double>(4, 0.0));
}

TEST(Training, learns) {
  const Training training(2000, 1);
  EXPECT_LE(training.weights().size(), 2000U);
  EXPECT_GT(training.weights().size(), 1500U);
  const auto runs = gather_world("threads", 3, [&](Communicator& comm) {
    XiOptions options{.weights = training.weights(), .steps = 80, .every = 40};
    options.reducer.density = 0.1;
    return measure_xi(comm, options, training.source(comm.rank()));
  });
  EXPECT_LT(runs[0].last_loss, 0.95 * runs[0].first_loss);
  EXPECT_EQ(runs[0].last_loss, runs[2].last_loss);
}

TEST(Training, refuses_too_few_weights) { EXPECT_THROW(Training(100, 1), UsageError); }

}  // namespace
}  // namespace oktopk::xi_test
