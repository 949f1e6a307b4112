// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tools/study/mass.h"

#include "tests/support/world.h"
#include "tools/statistics.h"

namespace oktopk::mass_test {
namespace {

ReducerOptions method(const std::string& preset, ResidualKind residual = ResidualKind::none,
                      const std::string& codec = "coo32+fp32") {
  ReducerOptions options{.preset = preset, .density = 0.05};
  options.allreduce.residual = residual;
  options.allreduce.codec = parse_codec(codec);
  return options;
}

std::vector<MassRun> masses(int P, const std::vector<ReducerOptions>& cases, const std::string& data = "dyadic") {
  const MassOptions options{cases, {.data = data, .n = 600, .steps = 10}};
  return gather_world("threads", P, [&](Communicator& comm) { return measure_mass(comm, options); })[0];
}

TEST(Mass, is_conserved_to_the_last_bit_by_default) {
  std::vector<ReducerOptions> cases;
  for (const Preset& preset : presets()) cases.push_back(method(std::string(preset.name)));
  for (const int P : {1, 3, 5})
    for (const MassRun& run : masses(P, cases)) {
      EXPECT_EQ(run.lost, 0);
      EXPECT_EQ(run.share(), 0);
      EXPECT_EQ(max_of(run.per_step), 0);
      EXPECT_GT(run.brought, 0);
    }
}

TEST(Mass, is_lost_by_the_published_rule_of_gtopk) {
  const auto runs = masses(5, {method("gtopk", ResidualKind::sender_keeps), method("gtopk")});
  EXPECT_GT(runs[0].share(), 0.001);
  EXPECT_GT(mean_of(runs[0].per_step), 0.001);
  EXPECT_EQ(runs[0].total.size(), 10U);
  EXPECT_EQ(runs[0].total.back(), runs[0].share());
  EXPECT_EQ(runs[1].share(), 0);
  EXPECT_EQ(runs[0].brought, runs[1].brought);
}

TEST(Mass, survives_lossy_codecs) {
  const auto runs = masses(
      3,
      {method("circulant", ResidualKind::none, "coo32+log4"), method("oktopk", ResidualKind::none, "elias_fano+bf16")},
      "calm");
  for (const MassRun& run : runs) EXPECT_LT(run.share(), 1e-6);
}

}  // namespace
}  // namespace oktopk::mass_test
