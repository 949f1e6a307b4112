// SPDX-License-Identifier: Apache-2.0
#include "lab/simulate/spec.h"

#include <gtest/gtest.h>

#include "lab/tests/simulate/simulated_row.h"
#include "oktopk/allreduce/presets.h"
#include "oktopk/base/error.h"
#include "oktopk/tune/cost.h"

namespace oktopk::experiment_test {
namespace {

SimulationSpec make_spec(const std::string& preset, Index n = 3000) {
  SimulationSpec spec;
  spec.P = 5;
  spec.n = n;
  spec.k = n / 50;
  spec.method = {.preset = preset};
  return spec;
}

SimulationSpec make_paper_spec() {
  SimulationSpec spec = make_spec("oktopk");
  spec.thresholds = ThresholdRule::paper;
  return spec;
}

TEST(Experiment, counts_and_times_every_preset) {
  for (const Preset& preset : presets()) {
    const SimulatedRow row = simulate_on_threads(make_spec(std::string(preset.name)));
    EXPECT_GT(row.steady, 0) << preset.name;
    EXPECT_GT(row.refresh, 0) << preset.name;
    EXPECT_GT(row.messages, 0) << preset.name;
    EXPECT_GE(row.selected, 20) << preset.name;
  }
}

// The time is the processor's alone here: it follows the bytes that arrive.
TEST(Experiment, a_smaller_problem_stands_for_the_whole_one) {
  for (const Preset& preset : presets()) {
    SimulationSpec spec = make_spec(std::string(preset.name), 200000);
    const SimulatedRow whole = simulate_on_threads(spec);
    spec.scale = 4;
    const SimulatedRow smaller = simulate_on_threads(spec);
    // Messages of slots have room for five deviations, which are a larger part of fewer entries.
    const double most = preset.name == "slots" ? 0.25 : 0.05;
    EXPECT_EQ(smaller.messages, whole.messages) << preset.name;
    EXPECT_NEAR(smaller.wire_bytes, whole.wire_bytes, most * whole.wire_bytes) << preset.name;
    EXPECT_NEAR(smaller.steady, whole.steady, most * whole.steady) << preset.name;
    EXPECT_NEAR(smaller.selected, whole.selected, 0.05 * whole.selected) << preset.name;
  }
}

TEST(Experiment, a_smaller_problem_takes_the_ring_where_the_whole_one_does) {
  SimulationSpec spec = make_spec("dense", 5U << 20U);
  spec.scale = 64;
  EXPECT_EQ(simulate_on_threads(spec).messages, 8);  // 2(P - 1)
  spec.n -= 5;
  EXPECT_EQ(simulate_on_threads(spec).messages, 6);  // 2 ceil(log2 P)
}

TEST(Experiment, only_gathered_unions_are_shared_among_tau_prime_steps) {
  const SimulatedRow paper = simulate_on_threads(make_paper_spec());
  EXPECT_NEAR(paper.mean, paper.steady + (paper.refresh - paper.steady) / 32, 1e-12);
  const SimulatedRow steered = simulate_on_threads(make_spec("oktopk"));
  EXPECT_NEAR(steered.mean, steered.steady, 1e-12);  // none of its two steps evaluated
}

// Owners that start with an empty memory gather up to twice as much, and refresh.
TEST(Experiment, settled_owners_gather_about_k_from_the_first_step_on) {
  for (const char* support : {"iid", "correlated", "layered"}) {
    SimulationSpec spec = make_spec("circulant", 100000);
    spec.k = 1000;
    spec.P = 13;
    spec.support = support;
    spec.warm_up = 0;
    spec.steps = 4;
    const SimulatedRow row = simulate_on_threads(spec);
    EXPECT_NEAR(row.selected, 1000, 50) << support;
    EXPECT_LT(row.wire_bytes, 1.8 * 16 * 1000 * 12 / 13) << support;  // two words twice, and headers
    EXPECT_NEAR(row.mean, row.steady, 1e-12) << support;              // no refresh
  }
}

TEST(Experiment, slow_host_stretches_the_step) {
  SimulationSpec spec = make_spec("topka");
  const double normal = simulate_on_threads(spec).steady;
  spec.slow_rank = 2;
  spec.slow_factor = 3;
  EXPECT_NEAR(simulate_on_threads(spec).steady, 3 * normal, 0.01 * normal);
}

TEST(Experiment, a_message_costs_its_overhead) {
  SimulationSpec spec = make_spec("topka");
  const double without = simulate_on_threads(spec).steady;
  spec.receive_overhead = 1;
  EXPECT_NEAR(simulate_on_threads(spec).steady, 3 + without, 1e-9);  // ceil(log2 P) messages
}

TEST(Experiment, refuses_so_many_steps_that_oktopk_would_refresh) {
  SimulationSpec spec = make_paper_spec();
  spec.steps = spec.tau_prime - spec.warm_up;
  EXPECT_THROW(simulate_on_threads(spec), UsageError);
  spec.steps = 0;
  EXPECT_THROW(simulate_on_threads(spec), UsageError);
}

TEST(Experiment, row_of_nodes_is_that_of_the_leaders_and_the_inside) {
  for (const int scale : {1, 2}) {
    SimulationSpec spec = make_spec("topka", 6000);
    spec.P = 6;
    spec.scale = scale;
    spec.method.group = 2;
    const SimulatedRow row = simulate_on_threads(spec);
    spec.P = 3;
    spec.method.group = 1;
    const SimulatedRow flat = simulate_on_threads(spec);
    EXPECT_EQ(row.messages, flat.messages);
    EXPECT_EQ(row.wire_bytes, flat.wire_bytes);
    const Cost inside = node_sum_cost(6000, 2) + node_share_entries_cost(flat.selected + 120, 2);
    EXPECT_NEAR(row.steady - flat.steady, inside.values * spec.delta + inside.entries * spec.gamma, 1e-8);
  }
}

TEST(SimulationSpec, survives_json) {
  SimulationSpec spec = make_paper_spec();
  spec.seed = 1234567890123456789U;
  spec.method = {.preset = "oktopk", .codec = {IndexCoding::elias_fano, ValueCoding::bf16}, .skips = "3,1", .group = 2};
  spec.union_exponent = 0.7;
  const auto json = nlohmann::json::parse(nlohmann::json(spec).dump());
  const auto read = json.get<SimulationSpec>();
  EXPECT_EQ(nlohmann::json(read), json);
  EXPECT_EQ(read.seed, spec.seed);
  EXPECT_EQ(read.method, spec.method);
  EXPECT_EQ(read.allreduce().thresholds, ThresholdRule::paper);
  EXPECT_TRUE(read.gathers_unions());
  EXPECT_FALSE(SimulationSpec{}.gathers_unions());
}

TEST(SimulationSpec, scales_n_and_k_and_keeps_one_of_each) {
  SimulationSpec spec = make_spec("dense", 1000);
  spec.scale = 8;
  EXPECT_EQ(spec.scaled_n(), 125U);
  EXPECT_EQ(spec.scaled_k(), 3U);
  spec.scale = 4096;
  EXPECT_EQ(spec.scaled_n(), 1U);
  EXPECT_EQ(spec.scaled_k(), 1U);
}

}  // namespace
}  // namespace oktopk::experiment_test
