// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tools/simulate/spec.h"

#include "tools/simulate/smpirun.h"

namespace oktopk::spec_test {
namespace {

TEST(SimulationSpec, survives_json) {
  SimulationSpec spec;
  spec.P = 3;
  spec.problems = {
      {.n = 10,
       .k = 2,
       .kth_magnitude = 0.1,
       .union_size = 5,
       .cuts = {0, 3, 6, 10},
       .cut_unions = {1, 2, 2},
       .equal_unions = {2, 2, 1},
       .methods =
           {{.preset = "dense"},
            {.preset = "oktopk", .codec = {IndexCoding::elias_fano, ValueCoding::bf16}, .skips = "3,1", .group = 2}},
       .leaders = {{.n = 10, .k = 2, .union_size = 3}}}};
  spec.presets = {"dense", "oktopk"};
  spec.support = "layered";
  spec.seed = 1234567890123456789U;
  spec.steps = 5;
  spec.warm_up = 4;
  spec.tau_prime = 7;
  spec.thresholds = ThresholdRule::published;
  spec.kernels = {.gamma = 1e-9, .delta = 2e-9};
  spec.receive_overhead = 1e-6;
  spec.slow_host = {.rank = 2, .factor = 3};
  spec.data_bytes = 1e9;
  spec.provoke = "abort";
  const auto json = to_json(spec);
  EXPECT_EQ(to_json(spec_from_json(nlohmann::json::parse(json.dump()))), json);
  EXPECT_EQ(spec_from_json(json).seed, spec.seed);
  EXPECT_EQ(spec_from_json(json).problems[0].cuts, spec.problems[0].cuts);
  EXPECT_EQ(spec_from_json(json).problems[0].methods, spec.problems[0].methods);
  EXPECT_EQ(spec_from_json(json).problems[0].leaders.size(), 1U);
  EXPECT_EQ(spec.allreduce({}).tau_prime, 7);
  EXPECT_EQ(spec_from_json(json).allreduce({}).thresholds, ThresholdRule::published);
  EXPECT_TRUE(spec.gathers_unions());
  EXPECT_FALSE(SimulationSpec{}.gathers_unions());
}

TEST(SimulatedRow, survives_json) {
  const SimulatedRow row{.preset = "topka",
                         .n = 100,
                         .k = 3,
                         .P = 5,
                         .carries_data = false,
                         .refresh_carries_data = false,
                         .steady = 1.0 / 3,
                         .refresh = 2.0 / 3,
                         .mean = 0.4,
                         .messages = 8,
                         .bytes = 77,
                         .selected = 12};
  const auto json = to_json(row);
  const SimulatedRow read = row_from_json(nlohmann::json::parse(json.dump()));
  EXPECT_EQ(read.steady, row.steady);
  EXPECT_EQ(to_json(read), json);
}

// Its exit code is 0 after these.
TEST(Smpirun, knows_what_the_simulator_prints_when_it_fails) {
  EXPECT_FALSE(reports_failure("[0.1] [smpi/WARNING] something harmless\n"));
  EXPECT_TRUE(reports_failure("[ker_engine/CRITICAL] Oops! Deadlock detected\n"));
  EXPECT_TRUE(reports_failure("[smpi_pmpi/WARNING] MPI_Abort was called, something\n"));
}

}  // namespace
}  // namespace oktopk::spec_test
