// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/density.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "tests/support/message.h"

namespace oktopk::density_test {
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
  for (std::uint64_t step = 0; step < 5; ++step) EXPECT_EQ(density_at(schedule, step), 1);
  for (std::uint64_t step = 5; step < 9; ++step) EXPECT_EQ(density_at(schedule, step), 0);
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
  EXPECT_EQ(density_at(schedule, 9), 0.25);
  EXPECT_EQ(density_at(schedule, 10), 0.0625);
  EXPECT_EQ(density_at(schedule, 39), 0.00390625);
  EXPECT_EQ(density_at(schedule, 40), 0);
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
  EXPECT_EQ(density_at(schedule, 0), 0.5);
  EXPECT_EQ(density_at(schedule, 1), 0.5);
  EXPECT_EQ(density_at(schedule, 2), 0.1);
  EXPECT_EQ(density_at(schedule, 3), 0);
  EXPECT_EQ(density_at({}, 0), 0);
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

constexpr Index n = 100'000;

SentShare share(double x) { return SentShare::of(x, 1); }

// One interval of steps, of which the last one saw `seen`.
void pass(AdaptiveDensity& density, double seen) {
  while (!density.is_due()) density.count();
  density.count();
  density.observe(share(seen));
}

// Its first n/k steps are over.
AdaptiveDensity settled(const AdaptiveDensityOptions& options) {
  AdaptiveDensity density(options, n, 1000);
  for (int i = 0; i < 4; ++i) pass(density, options.target_share);
  return density;
}

TEST(AdaptiveDensity, is_off_without_a_target) {
  EXPECT_FALSE(AdaptiveDensity().is_on());
  EXPECT_FALSE(AdaptiveDensity({}, n, 10).is_on());
  EXPECT_FALSE(AdaptiveDensity({.target_share = 0.1}, 0, 0).is_on());
  EXPECT_EQ(describe(AdaptiveDensityOptions{}), "");
}

TEST(AdaptiveDensity, unfit_options_are_refused_with_value_and_rule) {
  const auto refusal = [](const AdaptiveDensityOptions& options) { return message_of([&] { describe(options); }); };
  EXPECT_NE(refusal({.target_share = 1}).find("target share = 1, but it must be in (0, 1)"), std::string::npos);
  EXPECT_NE(refusal({.target_share = -0.5}).find("-0.5"), std::string::npos);
  EXPECT_NE(refusal({.target_share = std::numeric_limits<double>::quiet_NaN()}), "");
  EXPECT_NE(refusal({.budget = 0.1}).find("without a target share"), std::string::npos);
  EXPECT_NE(refusal({.least = 0.1}).find("without a target share"), std::string::npos);
  EXPECT_NE(refusal({.target_share = 0.1, .most = 2}).find("most = 2"), std::string::npos);
  EXPECT_NE(refusal({.target_share = 0.1, .budget = -1}).find("budget = -1"), std::string::npos);
  EXPECT_NE(refusal({.target_share = 0.1, .least = 0.2, .most = 0.1}).find("above most = 0.1"), std::string::npos);
  EXPECT_NE(refusal({.target_share = 0.1, .least = 0.2, .budget = 0.1}).find("budget = 0.1"), std::string::npos);
  EXPECT_NE(refusal({.target_share = 0.1, .interval = 0}).find("interval = 0"), std::string::npos);
  EXPECT_EQ(describe(AdaptiveDensityOptions{.target_share = 0.5}).find(kAdaptiveMark), 0u);
}

TEST(AdaptiveDensity, share_below_the_target_raises_k_and_above_it_lowers_it) {
  AdaptiveDensity density = settled({.target_share = 0.1});
  EXPECT_EQ(density.k(), 1000u);
  pass(density, 0.1);
  EXPECT_NEAR(static_cast<double>(density.k()), 1000, 1);
  pass(density, 0.08);
  EXPECT_NEAR(static_cast<double>(density.k()), 1118, 1);  // times (10/8)^(1/2)
  pass(density, 0.001);
  EXPECT_NEAR(static_cast<double>(density.k()), 1398, 1);  // at most a quarter more
  pass(density, 0.9);
  EXPECT_NEAR(static_cast<double>(density.k()), 1118, 1);
}

TEST(AdaptiveDensity, k_only_grows_while_the_residual_fills) {
  AdaptiveDensity density({.target_share = 0.1}, n, 1000);
  for (int i = 0; i < 3; ++i) pass(density, 0.9);
  EXPECT_EQ(density.k(), 1000u);
  pass(density, 0.9);  // step 128 of n/k = 100
  EXPECT_EQ(density.k(), 800u);
  AdaptiveDensity low({.target_share = 0.1}, n, 1000);
  pass(low, 0.01);
  EXPECT_EQ(low.k(), 1250u);
}

TEST(AdaptiveDensity, looks_once_per_interval) {
  AdaptiveDensity density({.target_share = 0.1, .interval = 5}, n, 1000);
  std::vector<std::uint64_t> looks;
  for (std::uint64_t step = 0; step < 12; ++step) {
    if (density.is_due()) looks.push_back(step);
    density.count();
  }
  EXPECT_EQ(looks, (std::vector<std::uint64_t>{4, 9}));
}

TEST(AdaptiveDensity, k_stays_within_the_limits) {
  AdaptiveDensity density({.target_share = 0.1, .least = 0.005, .most = 0.02}, n, 1000);
  for (int i = 0; i < 9; ++i) pass(density, 0.0);
  EXPECT_EQ(density.k(), 2000u);
  for (int i = 0; i < 12; ++i) pass(density, 1.0);
  EXPECT_EQ(density.k(), 500u);
  AdaptiveDensity wide({.target_share = 0.1}, n, 1000);
  EXPECT_EQ(wide.most(), 10'000u);
  for (int i = 0; i < 40; ++i) pass(wide, 1.0);
  EXPECT_EQ(wide.k(), 100u);
  EXPECT_EQ(AdaptiveDensity({.target_share = 0.1}, 50, 20).most(), 50u);
}

TEST(AdaptiveDensity, k_of_one_entry_grows) {
  AdaptiveDensity density({.target_share = 0.5}, 100, 1);
  for (int i = 0; i < 20; ++i) pass(density, 0.01);
  EXPECT_EQ(density.k(), 10u);
}

TEST(AdaptiveDensity, silence_changes_nothing) {
  AdaptiveDensity density({.target_share = 0.1}, n, 1000);
  for (int i = 0; i < 100; ++i) {
    density.count();
    density.observe({});
  }
  EXPECT_EQ(density.k(), 1000u);
}

TEST(AdaptiveDensity, budget_holds_at_every_step_and_can_be_used_up) {
  for (const double budget : {0.01, 0.00037, 0.000001}) {
    AdaptiveDensity density({.target_share = 0.1, .most = 0.1, .budget = budget, .interval = 4}, n, 5000);
    std::mt19937 random(1);
    const double bound = std::max(1.0, budget * n);
    for (int step = 1; step <= 4000; ++step) {
      const bool is_due = density.is_due();
      ASSERT_GE(density.k(), 1u);
      density.count();
      ASSERT_LE(static_cast<double>(density.spent()), bound * step) << budget;
      // First it wants less than it may have, then more.
      const double seen = static_cast<double>(random() % 1000) / 1000;
      if (is_due) density.observe(share(step < 2000 ? seen : seen / 100));
    }
    EXPECT_GT(static_cast<double>(density.spent()), 0.999 * bound * 4000 - 1) << budget;
  }
}

TEST(AdaptiveDensity, what_was_saved_may_be_spent_later) {
  AdaptiveDensity density({.target_share = 0.1, .budget = 0.01}, n, 1000);
  for (int i = 0; i < 13; ++i) pass(density, 0.9);
  EXPECT_LT(density.k(), 200u);
  for (int i = 0; i < 14; ++i) pass(density, 0.001);
  EXPECT_GT(density.k(), 2000u);
}

TEST(AdaptiveDensity, k_does_not_wait_at_a_height_that_the_budget_forbids) {
  AdaptiveDensity density({.target_share = 0.1, .budget = 0.01}, n, 1000);
  for (int i = 0; i < 50; ++i) pass(density, 0.0);
  pass(density, 0.9);
  EXPECT_LT(density.k(), 810u);
}

TEST(SentShare, is_free_of_scale_and_safe_without_mass) {
  EXPECT_EQ(SentShare::of(1e-90, 4e-90).mean(), 0.25);
  EXPECT_EQ(SentShare::of(1e80, 4e80).mean(), 0.25);
  EXPECT_EQ(SentShare::of(1 + 1e-12, 1).mean(), 1);
  EXPECT_EQ(SentShare::of(0, 0).ranks, 0u);
  EXPECT_EQ(SentShare{}.mean(), 0);
  EXPECT_EQ(SentShare::of(0, 1).ranks, 1u);
}

TEST(AdaptiveDensity, resume_goes_on_alike) {
  const AdaptiveDensityOptions options{.target_share = 0.1, .budget = 0.008};
  AdaptiveDensity one(options, n, 1000);
  for (const double seen : {0.3, 0.2, 0.01, 0.01}) pass(one, seen);
  one.count();
  AdaptiveDensity other(options, n, 1000);
  other.resume(one.words());
  for (const double seen : {0.01, 0.01, 0.3}) {
    EXPECT_EQ(other.words(), one.words());
    EXPECT_EQ(other.k(), one.k());
    pass(one, seen);
    pass(other, seen);
  }
}

TEST(AdaptiveDensity, resume_with_a_smaller_budget_owes_nothing) {
  AdaptiveDensity rich({.target_share = 0.1}, n, 5000);
  for (int i = 0; i < 4; ++i) pass(rich, 0.1);
  AdaptiveDensity poor({.target_share = 0.1, .budget = 0.01}, n, 1000);
  poor.resume(rich.words());
  EXPECT_EQ(poor.steps(), rich.steps());
  EXPECT_EQ(poor.k(), 1000u);
}

TEST(AdaptiveDensity, resume_refuses_words_that_are_none) {
  AdaptiveDensity density({.target_share = 0.1, .budget = 0.01}, n, 1000);
  AdaptiveDensity::Words words = density.words();
  words[0] = ~std::uint64_t{0};  // NaN
  EXPECT_THROW(density.resume(words), UsageError);
  words = density.words();
  words[1] = ~std::uint64_t{0};
  EXPECT_THROW(density.resume(words), UsageError);
}

TEST(AdaptiveDensity, share_cost_is_spread_over_the_interval) {
  EXPECT_EQ(share_cost(1, 32).messages, 0);
  EXPECT_EQ(share_cost(5, 1).messages, 3);
  EXPECT_EQ(share_cost(5, 1).bytes, 3 * 24);
  EXPECT_EQ(share_cost(5, 32).messages, 3.0 / 32);
}

}  // namespace
}  // namespace oktopk::density_test
