// SPDX-License-Identifier: Apache-2.0
// The steered global threshold alone: what a refresh guarantees, how it follows and corrects, when
// it asks for a refresh.
#include "oktopk/allreduce/parts/thresholds.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "oktopk/base/error.h"
#include "tests/support/sparse.h"
#include "tests/support/world.h"

namespace oktopk::global_threshold_test {
namespace {

constexpr std::size_t kK = 500;

std::vector<float> normal_values(std::uint64_t stream, std::size_t n, double scale = 1) {
  Random random(13, stream);
  std::vector<float> out(n);
  for (float& x : out) x = static_cast<float>(scale * random.normal());
  return out;
}

std::size_t count_above(std::span<const float> x, float threshold) {
  std::size_t count = 0;
  for (const float v : x) count += v != 0 && std::fabs(v) >= threshold ? 1 : 0;
  return count;
}

BlockTally tally_of(double log2_threshold, std::uint32_t contributors = 4) {
  return {contributors, 0, std::llround(log2_threshold * BlockTally::kOctave) * contributors};
}

// A threshold that was set once from `x`, all of it on one rank.
GlobalThreshold refreshed(std::span<const float> x, std::size_t k = kK) {
  GlobalThreshold threshold;
  run_world("threads", 1, [&](Communicator& comm) {
    Workspace work;
    EXPECT_TRUE(threshold.follow(tally_of(0), k));
    threshold.refresh(comm, x, k, work);
  });
  return threshold;
}

float value_of(const GlobalThreshold& threshold) { return threshold.value().value; }

// One steady step on the sums `x` of one owner without memory; how many were gathered.
std::size_t steady_step(GlobalThreshold& threshold, std::span<const float> x, std::size_t k = kK) {
  std::vector<float> gathered;
  for (const float v : x)
    if (v != 0 && std::fabs(v) >= value_of(threshold)) gathered.push_back(v);
  GlobalThreshold::Gathered seen{.values = gathered};
  seen.near.arrivals = gathered.size();
  seen.near.count(threshold.value(), x);
  threshold.observe(seen, k);
  return gathered.size();
}

TEST(GlobalThreshold, aim_is_slightly_above_k) {
  const GlobalThreshold threshold;
  for (const std::size_t k : {1U, 10U, 1000U, 1000000U}) {
    EXPECT_GE(static_cast<double>(threshold.aim(k)), 1.02 * static_cast<double>(k));
    EXPECT_LE(static_cast<double>(threshold.aim(k)), 1.2 * static_cast<double>(k) + 1);
    EXPECT_GE(GlobalThreshold::most_gathered(static_cast<double>(k)), static_cast<double>(threshold.aim(k)));
  }
}

TEST(GlobalThreshold, refresh_over_ranks_lets_exactly_the_aim_through) {
  for (const int P : {1, 2, 3, 7})
    for (const double scale : {1e-20, 1.0, 1e20}) {
      std::vector<std::vector<float>> sums;
      for (int r = 0; r < P; ++r) sums.push_back(normal_values(static_cast<std::uint64_t>(r), 5000, scale));
      run_world("threads", P, [&](Communicator& comm) {
        GlobalThreshold threshold;
        Workspace work;
        EXPECT_TRUE(threshold.follow(tally_of(0), kK));
        threshold.refresh(comm, sums[static_cast<std::size_t>(comm.rank())], kK, work);
        std::size_t above = 0;
        for (const auto& x : sums) above += count_above(x, value_of(threshold));
        EXPECT_EQ(above, threshold.aim(kK));
        EXPECT_FALSE(threshold.follow(tally_of(0), kK));
      });
    }
}

TEST(GlobalThreshold, refresh_with_equal_magnitudes_lets_all_through) {
  const std::vector<float> x(2000, -0.37F);
  EXPECT_EQ(count_above(x, value_of(refreshed(x))), 2000u);
}

TEST(GlobalThreshold, refresh_with_fewer_values_than_the_aim_gives_zero) {
  EXPECT_EQ(value_of(refreshed(normal_values(1, 400))), 0);
  EXPECT_EQ(value_of(refreshed(std::vector<float>(100, 0.0F))), 0);
  EXPECT_EQ(value_of(refreshed({})), 0);
}

TEST(GlobalThreshold, observe_steers_a_stationary_stream_to_the_aim) {
  for (const std::size_t k : {500U, 2000U}) {
    GlobalThreshold threshold = refreshed(normal_values(100, 50000), k);
    double off = 0;
    for (std::uint64_t step = 0; step < 60; ++step) {
      const std::vector<float> x = normal_values(step, 50000);
      const auto aim = static_cast<double>(threshold.aim(k));
      const auto count = static_cast<double>(steady_step(threshold, x, k));
      EXPECT_FALSE(threshold.follow(tally_of(0), k)) << "step " << step << ", k " << k;
      if (step < 10) continue;
      EXPECT_NEAR(count, aim, 0.2 * aim) << "step " << step << ", k " << k;
      off += (count - aim) / aim;
    }
    EXPECT_NEAR(off / 50, 0, 0.03) << k;
  }
}

// So few that chance alone may look like a wrong threshold; then a refresh sets it right.
TEST(GlobalThreshold, observe_with_refreshes_on_demand_holds_a_small_aim) {
  constexpr std::size_t k = 100;
  run_world("threads", 1, [&](Communicator& comm) {
    GlobalThreshold threshold;
    Workspace work;
    double counts = 0;
    double aims = 0;
    int refreshes = 0;
    for (std::uint64_t step = 0; step < 200; ++step) {
      const std::vector<float> x = normal_values(step, 20000);
      if (threshold.follow(tally_of(0), k)) {
        threshold.refresh(comm, x, k, work);
        ++refreshes;
      }
      aims += static_cast<double>(threshold.aim(k));
      counts += static_cast<double>(steady_step(threshold, x, k));
    }
    EXPECT_NEAR(counts / aims, 1, 0.2);
    EXPECT_LE(refreshes, 20);
  });
}

// An owner's memory: entries wait just below the threshold, dense there, and few arrive above it.
TEST(GlobalThreshold, observe_falls_just_far_enough_to_release_what_is_missing) {
  GlobalThreshold threshold = refreshed(normal_values(3, 50000));
  const Threshold before = threshold.value();
  const std::vector<float> gathered(480, 1.01F * before.value);
  GlobalThreshold::Gathered seen{.values = gathered};
  seen.near.arrivals = 400;
  seen.near.below.fill(1000);
  const double missing = static_cast<double>(threshold.aim(kK)) - 400;
  threshold.observe(seen, kK);
  const double bins = missing / 1000;  // of eight in the window
  EXPECT_NEAR(value_of(threshold), before.value * (1 - before.window * bins / 8), 0.05 * before.value * before.window);
  EXPECT_LT(threshold.value().window, before.window) << "so many wait that it must be narrower";
}

TEST(GlobalThreshold, observe_of_too_many_rises_above_what_was_trimmed) {
  std::vector<float> gathered = normal_values(4, 50000);
  GlobalThreshold threshold = refreshed(gathered);
  std::erase_if(gathered, [&](float v) { return std::fabs(v) < 0.7F * value_of(threshold); });
  ASSERT_GT(gathered.size(), 2 * kK);
  GlobalThreshold::Gathered seen{.values = gathered, .remembered = gathered.size() - kK};
  seen.near.arrivals = kK;
  threshold.observe(seen, kK);
  const std::size_t again = count_above(gathered, value_of(threshold));
  EXPECT_GE(again, kK / 2);
  EXPECT_LE(again, 5 * kK / 2);
  EXPECT_FALSE(threshold.follow(tally_of(0), kK)) << "all ranks know what was gathered";
}

TEST(GlobalThreshold, observe_of_all_sums_keeps_zero_until_they_are_too_many) {
  GlobalThreshold threshold = refreshed(normal_values(5, 300));
  steady_step(threshold, normal_values(6, 300));
  EXPECT_EQ(value_of(threshold), 0);
  EXPECT_FALSE(threshold.follow(tally_of(0), kK));
  steady_step(threshold, normal_values(6, 3000));
  EXPECT_TRUE(threshold.follow(tally_of(0), kK));
}

TEST(GlobalThreshold, observe_of_a_count_far_too_small_or_capped_asks_for_a_refresh) {
  GlobalThreshold small = refreshed(normal_values(7, 50000));
  steady_step(small, normal_values(30, 50000, 0.5));
  EXPECT_TRUE(small.follow(tally_of(0), kK));
  GlobalThreshold capped = refreshed(normal_values(7, 50000));
  const std::vector<float> gathered(kK, 2 * value_of(capped));
  capped.observe({.values = gathered, .is_capped = true}, kK);
  EXPECT_TRUE(capped.follow(tally_of(0), kK));
}

TEST(GlobalThreshold, follow_rises_with_the_mean_local_threshold_and_falls_only_by_feedback) {
  GlobalThreshold threshold = refreshed(normal_values(8, 50000));
  const float before = value_of(threshold);
  EXPECT_FALSE(threshold.follow(tally_of(0.1), kK));
  EXPECT_NEAR(value_of(threshold), before * std::exp2(0.1), 5e-4 * before);
  EXPECT_FALSE(threshold.follow(tally_of(0), kK));
  EXPECT_NEAR(value_of(threshold), before * std::exp2(0.1), 5e-4 * before);
}

TEST(GlobalThreshold, follow_of_a_jump_or_of_another_k_asks_for_a_refresh) {
  for (const double jump : {0.3, -0.3, 7.0}) {
    GlobalThreshold threshold = refreshed(normal_values(9, 50000));
    EXPECT_TRUE(threshold.follow(tally_of(jump), kK)) << jump;
  }
  for (const std::size_t k : {kK / 2, 2 * kK})
    EXPECT_TRUE(refreshed(normal_values(9, 50000)).follow(tally_of(0), k)) << k;
  EXPECT_FALSE(refreshed(normal_values(9, 50000)).follow(tally_of(0), kK + kK / 20));
}

TEST(GlobalThreshold, follow_without_contributors_changes_nothing) {
  GlobalThreshold threshold = refreshed(normal_values(10, 50000));
  const float before = value_of(threshold);
  EXPECT_FALSE(threshold.follow({}, kK));
  EXPECT_EQ(value_of(threshold), before);
  GlobalThreshold unknown;
  EXPECT_TRUE(unknown.follow({}, kK));
}

TEST(GlobalThreshold, load_refuses_what_is_not_finite) {
  StateWriter bad;
  bad.put(std::numeric_limits<float>::quiet_NaN());
  GlobalThreshold threshold;
  threshold.save(bad);  // enough bytes for the rest
  const Bytes wrong = bad.seal();
  StateReader reader(wrong);
  EXPECT_THROW(threshold.load(reader), UsageError);
}

// Sums that shrink by 6% per step, further than a narrow window reaches: it widens until it does.
TEST(GlobalThreshold, shrinking_sums_are_followed_without_a_refresh) {
  GlobalThreshold threshold = refreshed(normal_values(0, 1000));
  std::size_t late = 0;
  for (std::uint64_t step = 1; step <= 40; ++step) {
    const double scale = std::pow(0.94, static_cast<double>(step));
    const std::size_t count = steady_step(threshold, normal_values(step, 1000, scale));
    ASSERT_TRUE(threshold.is_known()) << "step " << step;
    if (step > 20) late += count;
  }
  EXPECT_GT(static_cast<double>(late) / 20, 0.95 * kK);
}

}  // namespace
}  // namespace oktopk::global_threshold_test
