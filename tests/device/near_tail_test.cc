// SPDX-License-Identifier: Apache-2.0
#include "oktopk/device/near_tail.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace oktopk::near_tail_test {
namespace {

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
}  // namespace oktopk::near_tail_test
