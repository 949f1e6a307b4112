// SPDX-License-Identifier: Apache-2.0
// Elastic jobs under simulated faults keep their laws.
#include "tests/faults/elastic_job.h"

#include <gtest/gtest.h>

#include "oktopk/base/error.h"

namespace oktopk::faults::elastic_job_test {

TEST(FaultElasticJob, laws_hold_over_seeds) {
  std::uint64_t struck = 0, arbiter_struck = 0, epochs = 0, exact = 0, left_out = 0, refusals = 0;
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    const Plan plan = draw_elastic_plan(seed);
    const JobResult result = run_elastic_job(plan);
    struck += result.struck;
    arbiter_struck += result.arbiter_struck;
    epochs += static_cast<std::uint64_t>(result.attempts);
    refusals += result.refusals;
    exact += result.mass == MassCheck::made ? 1 : 0;
    left_out += result.mass == MassCheck::left_out ? 1 : 0;
    for (const std::string& failure : result.failures)
      ADD_FAILURE() << describe(plan) << "\n" << failure << "\n" << result.report;
  }
  EXPECT_GT(struck, 40u);
  EXPECT_GT(arbiter_struck, 80u);
  EXPECT_GT(epochs, 200u);
  EXPECT_GT(exact, 30u);
  EXPECT_GT(refusals, 80u);
  EXPECT_EQ(left_out, 0u);
}

TEST(FaultElasticJob, run_of_a_seed_repeats) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed)
    EXPECT_EQ(run_elastic_job(draw_elastic_plan(seed)).history, run_elastic_job(draw_elastic_plan(seed)).history);
}

}  // namespace oktopk::faults::elastic_job_test
