// SPDX-License-Identifier: Apache-2.0
#include "tools/simulate/experiment.h"

#include <gtest/gtest.h>

#include "oktopk/allreduce/presets.h"
#include "oktopk/base/error.h"
#include "tests/support/simulated_row.h"
#include "tools/simulate/problem.h"

namespace oktopk::experiment_test {
namespace {

constexpr int kRanks = 5;

SimulationSpec make_spec(double data_bytes) {
  SimulationSpec spec;
  spec.P = kRanks;
  spec.problems = {make_problem({.n = 3000, .k = 60, .P = kRanks}, true)};
  spec.support = "iid";
  spec.data_bytes = data_bytes;
  return spec;
}

SimulatedRow run_row(const SimulationSpec& spec, const std::string& preset) {
  return simulate_on_threads(spec, spec.problems.front(), preset, {.preset = preset});
}

TEST(Experiment, counts_and_times_every_preset) {
  const SimulationSpec spec = make_spec(1e9);
  for (const Preset& preset : presets()) {
    const SimulatedRow row = run_row(spec, std::string(preset.name));
    EXPECT_TRUE(row.carries_data && row.refresh_carries_data) << preset.name;
    EXPECT_GT(row.steady, 0) << preset.name;
    EXPECT_GT(row.refresh, 0) << preset.name;
    EXPECT_GT(row.messages, 0) << preset.name;
    EXPECT_GE(row.selected, 20) << preset.name;
  }
}

TEST(Experiment, sizes_cost_what_data_cost) {
  for (const std::string preset : {"dense", "topka", "gaussiank", "topkdsa", "topka2a"}) {
    const SimulatedRow data = run_row(make_spec(1e9), preset);
    const SimulatedRow sizes = run_row(make_spec(1), preset);
    EXPECT_FALSE(sizes.carries_data) << preset;
    EXPECT_EQ(sizes.messages, data.messages) << preset;
    EXPECT_NEAR(sizes.bytes, data.bytes, 0.05 * data.bytes) << preset;
    EXPECT_NEAR(sizes.steady, data.steady, 0.05 * data.steady) << preset;
  }
}

SimulationSpec make_paper_spec(double data_bytes) {
  SimulationSpec spec = make_spec(data_bytes);
  spec.thresholds = ThresholdRule::paper;
  return spec;
}

TEST(Experiment, starts_from_a_survey_where_the_first_step_would_not_fit) {
  const SimulatedRow data = run_row(make_paper_spec(1e9), "oktopk");
  const SimulatedRow surveyed = run_row(make_paper_spec(1), "oktopk");
  EXPECT_TRUE(surveyed.carries_data);
  EXPECT_FALSE(surveyed.refresh_carries_data);
  EXPECT_EQ(surveyed.messages, data.messages);
  EXPECT_NEAR(surveyed.bytes, data.bytes, 0.15 * data.bytes);
  EXPECT_NEAR(surveyed.selected, data.selected, 0.3 * data.selected);
  EXPECT_NEAR(surveyed.refresh, data.refresh, 0.15 * data.refresh);
}

TEST(Experiment, steered_thresholds_need_no_survey) {
  const SimulatedRow row = run_row(make_spec(1), "oktopk");
  EXPECT_TRUE(row.carries_data && row.refresh_carries_data);
}

TEST(Experiment, only_gathered_unions_are_shared_among_tau_prime_steps) {
  const SimulatedRow paper = run_row(make_paper_spec(1e9), "oktopk");
  EXPECT_NEAR(paper.mean, paper.steady + (paper.refresh - paper.steady) / 32, 1e-12);
  const SimulatedRow steered = run_row(make_spec(1e9), "oktopk");
  EXPECT_NEAR(steered.mean, steered.steady, 1e-12);  // none of its two steps evaluated
}

// Owners that start with an empty memory gather up to twice as much, and refresh.
TEST(Experiment, settled_owners_gather_about_k_from_the_first_step_on) {
  for (const char* support : {"iid", "correlated", "layered"}) {
    SimulationSpec spec = make_spec(1e9);
    spec.P = 13;
    spec.support = support;
    spec.problems = {make_problem({.n = 100000, .k = 1000, .P = spec.P, .kind = find_support(support)}, false)};
    spec.warm_up = 0;
    spec.steps = 4;
    const SimulatedRow row = run_row(spec, "circulant");
    EXPECT_NEAR(row.selected, 1000, 50) << support;
    EXPECT_LT(row.bytes, 1.8 * 16 * 1000 * 12 / 13) << support;  // two words twice, and headers
    EXPECT_NEAR(row.mean, row.steady, 1e-12) << support;         // no refresh
  }
}

TEST(Experiment, settling_needs_memory_for_all_owners_at_once) {
  const SimulationSpec spec = make_spec(1e9);
  const SimulatedProblem& problem = spec.problems.front();
  EXPECT_GT(needed_bytes({.preset = "circulant"}, spec, problem),
            needed_bytes({.preset = "spardl"}, spec, problem) + 4.0 * problem.n);
}

TEST(Experiment, circulant_always_makes_its_first_step_with_data) {
  const SimulatedRow row = run_row(make_spec(1), "circulant");
  EXPECT_TRUE(row.carries_data && row.refresh_carries_data);
}

TEST(Experiment, slow_host_stretches_the_step) {
  SimulationSpec spec = make_spec(1e9);
  const double normal = run_row(spec, "topka").steady;
  spec.slow_host = {.rank = 2, .factor = 3};
  EXPECT_NEAR(run_row(spec, "topka").steady, 3 * normal, 0.01 * normal);
}

TEST(Experiment, refuses_so_many_steps_that_oktopk_would_refresh) {
  SimulationSpec spec = make_paper_spec(1e9);
  spec.steps = spec.tau_prime - spec.warm_up;
  EXPECT_THROW(run_row(spec, "oktopk"), UsageError);
  spec.steps = 0;
  EXPECT_THROW(run_row(spec, "topka"), UsageError);
}

}  // namespace
}  // namespace oktopk::experiment_test
