// SPDX-License-Identifier: Apache-2.0
// The steered global threshold alone: what a refresh guarantees, how it follows and corrects, when
// it asks for a refresh.
#include "oktopk/allreduce/global_threshold.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

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

MagnitudeHistogram histogram(std::span<const float> x) {
  MagnitudeHistogram bins{};
  make_cpu_device()->magnitude_histogram(x, bins);
  return bins;
}

std::size_t count_above(std::span<const float> x, float threshold) {
  std::size_t count = 0;
  for (const float v : x) count += v != 0 && std::fabs(v) >= threshold ? 1 : 0;
  return count;
}

BlockNote note_of(double log2_threshold, std::uint32_t contributors = 4) {
  return {contributors, 0, std::llround(log2_threshold * BlockNote::kOctave) * contributors};
}

// A threshold that was set once from `x`, all of it on one rank.
GlobalThreshold refreshed(std::span<const float> x, std::size_t k = kK) {
  GlobalThreshold threshold;
  run_world("threads", 1, [&](Communicator& comm) {
    Workspace work;
    EXPECT_TRUE(threshold.follow(note_of(0)));
    threshold.refresh(comm, histogram(x), k, work);
  });
  return threshold;
}

// One steady step on the sums `x` of one owner; how many were gathered.
std::size_t steady_step(GlobalThreshold& threshold, std::span<const float> x, std::size_t k = kK) {
  const std::size_t gathered = count_above(x, threshold.value());
  threshold.observe(std::vector{threshold.window(histogram(x))}, gathered, k);
  return gathered;
}

TEST(GlobalThreshold, aim_is_slightly_above_k) {
  const GlobalThreshold threshold;
  for (const std::size_t k : {1U, 10U, 1000U, 1000000U}) {
    EXPECT_GE(static_cast<double>(threshold.aim(k)), 1.02 * static_cast<double>(k));
    EXPECT_LE(static_cast<double>(threshold.aim(k)), 1.2 * static_cast<double>(k) + 1);
  }
}

TEST(GlobalThreshold, refresh_over_ranks_lets_at_least_the_aim_through_and_less_than_a_bin_more) {
  for (const int P : {1, 2, 3, 7})
    for (const double scale : {1e-20, 1.0, 1e20}) {
      std::vector<std::vector<float>> sums;
      for (int r = 0; r < P; ++r)
        sums.push_back(normal_values(static_cast<std::uint64_t>(r), 5000, scale));
      run_world("threads", P, [&](Communicator& comm) {
        GlobalThreshold threshold;
        Workspace work;
        EXPECT_TRUE(threshold.follow(note_of(0)));
        threshold.refresh(comm, histogram(sums[static_cast<std::size_t>(comm.rank())]), kK, work);
        const float next = magnitude_bin_edge(magnitude_bin(threshold.value()) + 1);
        std::size_t above = 0;
        std::size_t above_next = 0;
        for (const auto& x : sums) {
          above += count_above(x, threshold.value());
          above_next += count_above(x, next);
        }
        EXPECT_GE(above, threshold.aim(kK));
        EXPECT_LT(above_next, threshold.aim(kK));
        EXPECT_FALSE(threshold.follow(note_of(0)));
      });
    }
}

TEST(GlobalThreshold, refresh_with_equal_magnitudes_lets_all_through) {
  const std::vector<float> x(2000, -0.37F);
  EXPECT_EQ(count_above(x, refreshed(x).value()), 2000u);
}

TEST(GlobalThreshold, refresh_with_fewer_values_than_the_aim_gives_zero) {
  EXPECT_EQ(refreshed(normal_values(1, 400)).value(), 0);
  EXPECT_EQ(refreshed(std::vector<float>(100, 0.0F)).value(), 0);
  EXPECT_EQ(refreshed({}).value(), 0);
}

TEST(GlobalThreshold, window_counts_bins_around_the_threshold) {
  const std::vector<float> x = normal_values(2, 20000);
  const GlobalThreshold threshold = refreshed(x);
  const TailWindow window = threshold.window(histogram(x));
  const MagnitudeHistogram bins = histogram(x);
  EXPECT_EQ(window.first_bin + TailWindow::kBins / 2, magnitude_bin(threshold.value()));
  std::uint64_t above = 0;
  for (std::size_t bin = window.first_bin + TailWindow::kBins; bin < kMagnitudeBins; ++bin)
    above += bins[bin];
  for (std::size_t i = 0; i < TailWindow::kBins; ++i)
    EXPECT_EQ(window.counts[i], bins[window.first_bin + i]);
  EXPECT_EQ(window.above, above);
  EXPECT_EQ(window.available, 20000u);
}

TEST(GlobalThreshold, window_at_the_ends_of_the_scale_stays_inside) {
  EXPECT_EQ(refreshed({}).window(histogram({})).first_bin, 0u);
  const std::vector<float> huge(2000, std::numeric_limits<float>::max());
  const TailWindow window = refreshed(huge).window(histogram(huge));
  EXPECT_LE(window.first_bin + TailWindow::kBins, kMagnitudeBins);
  EXPECT_EQ(window.available, 2000u);
}

TEST(GlobalThreshold, observe_steers_a_stationary_stream_to_the_aim) {
  for (const std::size_t k : {500U, 2000U}) {
    GlobalThreshold threshold = refreshed(normal_values(100, 50000), k);
    double off = 0;
    for (std::uint64_t step = 0; step < 60; ++step) {
      const std::vector<float> x = normal_values(step, 50000);
      const auto aim = static_cast<double>(threshold.aim(k));
      const auto count = static_cast<double>(steady_step(threshold, x, k));
      EXPECT_FALSE(threshold.follow(note_of(0))) << "step " << step << ", k " << k;
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
      if (threshold.follow(note_of(0))) {
        threshold.refresh(comm, histogram(x), k, work);
        ++refreshes;
      }
      aims += static_cast<double>(threshold.aim(k));
      counts += static_cast<double>(steady_step(threshold, x, k));
    }
    EXPECT_NEAR(counts / aims, 1, 0.2);
    EXPECT_LE(refreshes, 20);
  });
}

TEST(GlobalThreshold, observe_of_several_owners_adds_their_windows) {
  const std::vector<float> x = normal_values(3, 20000);
  const auto half = std::span(x).first(10000);
  const auto rest = std::span(x).subspan(10000);
  GlobalThreshold whole = refreshed(x);
  GlobalThreshold split = whole;
  const std::size_t gathered = count_above(x, whole.value());
  whole.observe(std::vector{whole.window(histogram(x))}, gathered, kK);
  split.observe(std::vector{split.window(histogram(half)), split.window(histogram(rest))}, gathered,
                kK);
  EXPECT_EQ(whole.value(), split.value());
}

TEST(GlobalThreshold, observe_takes_windows_whose_centres_differ_by_one_bin) {
  const std::vector<float> x = normal_values(4, 20000);
  GlobalThreshold threshold = refreshed(x);
  TailWindow a = threshold.window(histogram(x));
  for (const std::uint32_t shifted : {a.first_bin - 1, a.first_bin + 1}) {
    TailWindow b = a;
    b.first_bin = shifted;
    GlobalThreshold copy = threshold;
    copy.observe(std::vector{a, b}, 2 * copy.aim(kK), 2 * kK);
    EXPECT_NEAR(copy.value(), threshold.value(), 0.2 * threshold.value());
  }
}

TEST(GlobalThreshold, observe_with_fewer_available_than_the_aim_gives_zero) {
  GlobalThreshold threshold = refreshed(normal_values(5, 50000));
  EXPECT_GT(threshold.value(), 0);
  steady_step(threshold, normal_values(6, 300));
  EXPECT_EQ(threshold.value(), 0);
  steady_step(threshold, std::vector<float>(300, 0.0F));
  EXPECT_EQ(threshold.value(), 0);
}

TEST(GlobalThreshold, observe_of_a_count_far_off_asks_for_a_refresh) {
  for (const double scale : {0.5, 2.0}) {
    GlobalThreshold threshold = refreshed(normal_values(7, 50000));
    for (std::uint64_t step = 0; step < 5; ++step)
      steady_step(threshold, normal_values(20 + step, 50000));
    EXPECT_FALSE(threshold.follow(note_of(0)));
    steady_step(threshold, normal_values(30, 50000, scale));
    EXPECT_TRUE(threshold.follow(note_of(0))) << scale;
  }
}

TEST(GlobalThreshold, follow_moves_with_the_mean_local_threshold) {
  GlobalThreshold threshold = refreshed(normal_values(8, 50000));
  const float before = threshold.value();
  EXPECT_FALSE(threshold.follow(note_of(0.1)));
  // Half a unit of the note is 2^-11 octaves.
  EXPECT_NEAR(threshold.value(), before * std::exp2(0.1), 4e-4 * before);
  EXPECT_FALSE(threshold.follow(note_of(0)));
  EXPECT_NEAR(threshold.value(), before, 1e-4 * before);
}

TEST(GlobalThreshold, follow_of_a_jump_asks_for_a_refresh) {
  for (const double jump : {0.2, -0.2, 7.0}) {
    GlobalThreshold threshold = refreshed(normal_values(9, 50000));
    EXPECT_TRUE(threshold.follow(note_of(jump))) << jump;
  }
}

TEST(GlobalThreshold, follow_without_contributors_changes_nothing) {
  GlobalThreshold threshold = refreshed(normal_values(10, 50000));
  const float before = threshold.value();
  EXPECT_FALSE(threshold.follow({}));
  EXPECT_EQ(threshold.value(), before);
  GlobalThreshold unknown;
  EXPECT_TRUE(unknown.follow({}));
}

}  // namespace
}  // namespace oktopk::global_threshold_test
