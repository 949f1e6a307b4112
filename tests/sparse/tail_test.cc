// SPDX-License-Identifier: Apache-2.0
#include "oktopk/sparse/tail.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <vector>

#include "oktopk/base/random.h"

namespace oktopk::tail_test {
namespace {

// |v| = threshold * exp(slope * Exp(1)): Hill's estimator gives the slope.
std::vector<float> tail_of(double slope, float threshold, std::size_t count) {
  Random random(3);
  std::vector<float> values(count);
  for (float& v : values)
    v = static_cast<float>((random.below(2) == 0 ? 1 : -1) * threshold * std::exp(-slope * std::log(random.uniform())));
  return values;
}

TEST(Tail, slope_of_an_exponential_tail_is_its_own) {
  for (const double slope : {0.01, 0.2})
    for (const std::size_t count : {2000U, 50000U})
      EXPECT_NEAR(tail_slope(tail_of(slope, 7, count), 7), slope, 0.1 * slope);
}

TEST(Tail, slope_of_nothing_or_of_values_that_are_not_finite_is_zero) {
  EXPECT_EQ(tail_slope({}, 1), 0);
  EXPECT_EQ(tail_slope(std::vector<float>{2, std::numeric_limits<float>::infinity()}, 1), 0);
}

TEST(Tail, steering_slope_stays_between_zero_and_one_half) {
  EXPECT_EQ(steering_slope(std::vector<float>{0.5F, 0.5F}, 1), 0);
  EXPECT_EQ(steering_slope(std::vector<float>{1e9F}, 1), 0.5);
  EXPECT_NEAR(steering_slope(tail_of(0.1, 1, 3000), 1), 0.1, 0.01);
}

TEST(Tail, noise_of_a_count_is_two_deviations) { EXPECT_EQ(count_noise(2500), 100); }

TEST(NearTail, count_sorts_magnitudes_below_the_threshold_into_equal_bins) {
  const Threshold threshold{.value = 8, .window = 0.125F};  // 7 .. 8, bins of 1/8
  NearTail near;
  near.count(threshold, std::vector<float>{8, -8.5F, 7.95F, -7.9F, 7.8F, -7.05F, 6.9F, 0});
  EXPECT_EQ(near.below, (std::array<std::uint64_t, NearTail::kBins>{2, 1, 0, 0, 0, 0, 0, 1}));
  EXPECT_EQ(near.arrivals, 0u);
}

TEST(NearTail, count_without_a_threshold_or_window_counts_nothing) {
  NearTail near;
  near.count({.value = 0, .window = 0.1F}, std::vector<float>{1, 0, -2});
  near.count({.value = 1, .window = 0}, std::vector<float>{0.99F, 0.5F});
  EXPECT_EQ(std::accumulate(near.below.begin(), near.below.end(), 0), 0);
}

TEST(NearTail, sum_adds_every_count) {
  NearTail a{.arrivals = 3, .below = {1, 2, 3, 4, 5, 6, 7, 8}};
  a += NearTail{.arrivals = 10, .below = {1, 1, 1, 1, 1, 1, 1, 1}};
  EXPECT_EQ(a.arrivals, 13u);
  EXPECT_EQ(a.below, (std::array<std::uint64_t, NearTail::kBins>{2, 3, 4, 5, 6, 7, 8, 9}));
}

}  // namespace
}  // namespace oktopk::tail_test
