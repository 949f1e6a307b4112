// SPDX-License-Identifier: Apache-2.0
#include "tools/statistics.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

namespace oktopk::statistics_test {
namespace {

TEST(Statistics, quantiles_are_linear_between_values) {
  const std::vector<double> values = {4, 1, 3, 2, 5};
  EXPECT_DOUBLE_EQ(quantile(values, 0), 1);
  EXPECT_DOUBLE_EQ(quantile(values, 0.5), 3);
  EXPECT_DOUBLE_EQ(quantile(values, 0.05), 1.2);
  EXPECT_DOUBLE_EQ(quantile(values, 1), 5);
  EXPECT_DOUBLE_EQ(quantile({7}, 0.95), 7);
  EXPECT_DOUBLE_EQ(quantile({}, 0.5), 0);
}

TEST(Statistics, mean_and_largest) {
  const std::vector<double> values = {0.5, 1, 1.5, 2};
  EXPECT_DOUBLE_EQ(mean_of(values), 1.25);
  EXPECT_DOUBLE_EQ(max_of(values), 2);
}

TEST(Statistics, nothing_gives_zeros) {
  EXPECT_EQ(mean_of({}), 0);
  EXPECT_EQ(max_of({}), 0);
}

TEST(Statistics, summary_has_median_least_and_deviation) {
  const Times times = summarise({4, 1, 2, 100, 3});
  EXPECT_EQ(times.median, 3);
  EXPECT_EQ(times.least, 1);
  EXPECT_EQ(times.deviation, 1);
  EXPECT_EQ(summarise({}).median, 0);
}

TEST(Timer, lap_gives_the_time_since_the_last_one) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  Timer timer;
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const double first = timer.lap();
  const double second = timer.lap();
  const double all = std::chrono::duration<double>(Clock::now() - begin).count();
  EXPECT_GE(first, 0.005);
  EXPECT_GE(second, 0);
  EXPECT_LE(first + second, all);
}

}  // namespace
}  // namespace oktopk::statistics_test
