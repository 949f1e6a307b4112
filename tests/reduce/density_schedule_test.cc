// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/density_schedule.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/message.h"

namespace oktopk::density_schedule_test {
namespace {

std::uint64_t total_steps(const DensitySchedule& schedule) {
  std::uint64_t total = 0;
  for (const DensityStage& stage : schedule) total += stage.steps;
  return total;
}

TEST(DensitySchedule, dense_warmup_is_one_stage_or_none) {
  EXPECT_TRUE(dense_warmup(0).empty());
  const DensitySchedule schedule = dense_warmup(5);
  ASSERT_EQ(schedule.size(), 1u);
  for (std::uint64_t step = 0; step < 5; ++step) EXPECT_EQ(density_at(schedule, step, 0.5), 1);
  for (std::uint64_t step = 5; step < 9; ++step) EXPECT_EQ(density_at(schedule, step, 0.5), 0.5);
}

TEST(DensitySchedule, dgc_warmup_quarters_the_density_stage_by_stage) {
  const DensitySchedule schedule = dgc_warmup(40, 0.001);
  ASSERT_EQ(schedule.size(), 4u);
  double density = 0.25;
  for (const DensityStage& stage : schedule) {
    EXPECT_EQ(stage.steps, 10u);
    EXPECT_EQ(stage.density, density);
    EXPECT_GT(stage.density, 0.001);
    density /= 4;
  }
  EXPECT_EQ(density_at(schedule, 9, 0), 0.25);
  EXPECT_EQ(density_at(schedule, 10, 0), 0.0625);
  EXPECT_EQ(density_at(schedule, 39, 0), 0.00390625);
  EXPECT_EQ(density_at(schedule, 40, 0), 0);
}

TEST(DensitySchedule, dgc_warmup_lasts_as_long_as_asked_for) {
  for (const std::uint64_t steps : {0, 1, 2, 3, 5, 7, 100, 101})
    for (const double density : {0.2, 0.01, 0.001, 1e-6}) {
      const DensitySchedule schedule = dgc_warmup(steps, density);
      EXPECT_EQ(total_steps(schedule), steps) << density;
      for (std::size_t s = 0; s < schedule.size(); ++s) {
        EXPECT_GT(schedule[s].steps, 0u);
        const double before = s > 0 ? schedule[s - 1].density : 1;
        EXPECT_LT(schedule[s].density, before);
      }
    }
}

TEST(DensitySchedule, dgc_warmup_to_a_quarter_or_more_needs_no_stage) {
  for (const double density : {0.25, 0.5, 1.0}) EXPECT_TRUE(dgc_warmup(10, density).empty());
}

TEST(DensitySchedule, dgc_warmup_to_no_density_is_refused) {
  for (const double density : {0.0, -0.1, 1.1, std::numeric_limits<double>::quiet_NaN()}) {
    const std::string message = message_of([&] { dgc_warmup(10, density); });
    EXPECT_NE(message.find("density"), std::string::npos) << message;
  }
}

TEST(DensitySchedule, density_at_passes_over_empty_stages) {
  const DensitySchedule schedule = {{0, 1}, {2, 0.5}, {0, 0.3}, {1, 0.1}};
  EXPECT_EQ(density_at(schedule, 0, 9), 0.5);
  EXPECT_EQ(density_at(schedule, 1, 9), 0.5);
  EXPECT_EQ(density_at(schedule, 2, 9), 0.1);
  EXPECT_EQ(density_at(schedule, 3, 9), 9);
  EXPECT_EQ(density_at({}, 0, 9), 9);
}

TEST(DensitySchedule, entries_at_rounds_and_is_at_least_one) {
  EXPECT_EQ(entries_at(0.01, 1049), 10u);
  EXPECT_EQ(entries_at(0.01, 1051), 11u);
  EXPECT_EQ(entries_at(1e-9, 5), 1u);
  EXPECT_EQ(entries_at(1, 7), 7u);
  EXPECT_EQ(entries_at(0.9999, 7), 7u);
  EXPECT_EQ(entries_at(0.5, 0), 0u);
  EXPECT_EQ(entries_at(1, 0xffffffffU), 0xffffffffU);
}

TEST(DensitySchedule, check_of_a_density_outside_0_to_1_names_it) {
  check_schedule({});
  check_schedule({{3, 1}, {0, 0.001}});
  for (const double density : {0.0, -0.5, 2.0, std::numeric_limits<double>::quiet_NaN()}) {
    const std::string message = message_of([&] { check_schedule({{1, 1}, {1, density}}); });
    EXPECT_NE(message.find("warm-up: density = "), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace oktopk::density_schedule_test
