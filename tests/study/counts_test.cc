// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tools/study/counts.h"

#include <map>

#include "tests/support/world.h"

namespace oktopk::counts_test {
namespace {

std::map<std::string, CountRun> counts(const std::string& data) {
  const CountOptions options{.source = {.data = data, .n = 2000, .steps = 12}, .density = 0.05};
  const auto by_rank = gather_world("threads", 3, [&](Communicator& comm) { return measure_counts(comm, options); });
  std::map<std::string, CountRun> runs;
  for (const CountRun& run : by_rank[0]) runs[run.name] = run;
  return runs;
}

TEST(Counts, exact_selectors_give_k) {
  auto runs = counts("rough");
  for (const char* name : {"exact", "quota"})
    for (const double ratio : runs[name].ratios) EXPECT_EQ(ratio, 1) << name;
}

TEST(Counts, no_selection_exceeds_2k) {
  for (const auto& [name, run] : counts("rough")) {
    EXPECT_FALSE(run.ratios.empty());
    if (run.global) continue;
    for (const double ratio : run.ratios) EXPECT_LE(ratio, 2) << name;
  }
}

TEST(Counts, leave_out_the_first_quarter) {
  auto runs = counts("calm");
  EXPECT_EQ(runs["exact"].ratios.size(), 3U * 9U);
  EXPECT_EQ(runs["oktopk"].ratios.size(), 9U);
  EXPECT_EQ(runs["exact"].per_step.size(), 12U);
  EXPECT_TRUE(runs["circulant"].global);
}

TEST(Counts, updates_of_circulant_never_exceed_k) {
  auto runs = counts("rough");
  for (const double ratio : runs["circulant"].ratios) EXPECT_LE(ratio, 1);
}

}  // namespace
}  // namespace oktopk::counts_test
