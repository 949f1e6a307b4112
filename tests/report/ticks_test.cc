// SPDX-License-Identifier: Apache-2.0
#include "tools/report/ticks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace oktopk::ticks_test {
namespace {

std::string labels(const std::vector<Tick>& ticks) {
  std::string joined;
  for (const Tick& tick : ticks)
    if (!tick.label.empty()) joined += (joined.empty() ? "" : " ") + tick.label;
  return joined;
}

std::string linear_labels(double lo, double hi) { return labels(linear_ticks(lo, hi, nice_step(hi - lo, 5))); }

TEST(Ticks, values_are_short_and_rounded) {
  EXPECT_EQ(format_value(0), "0");
  EXPECT_EQ(format_value(999), "999");
  EXPECT_EQ(format_value(1000), "1k");
  EXPECT_EQ(format_value(2.5e6), "2.5M");
  EXPECT_EQ(format_value(-1234567), "-1.235M");
  EXPECT_EQ(format_value(999999), "1M");
  EXPECT_EQ(format_value(3e10, 2), "30G");
  EXPECT_EQ(format_value(0.1 + 0.2), "0.3");
  EXPECT_EQ(format_value(0.00123456), "0.001235");
  EXPECT_EQ(format_value(2.5e-5), "2.5e-5");
  EXPECT_EQ(format_value(1e21), "1e21");
  EXPECT_EQ(format_value(12.3456, 3), "12.3");
}

TEST(Ticks, values_that_are_no_numbers_have_names) {
  EXPECT_EQ(format_value(std::nan("")), "n/a");
  EXPECT_EQ(format_value(std::numeric_limits<double>::infinity()), "inf");
}

TEST(Ticks, steps_are_one_two_or_five) {
  EXPECT_DOUBLE_EQ(nice_step(10, 5), 2);
  EXPECT_DOUBLE_EQ(nice_step(4000, 6), 1000);
  EXPECT_DOUBLE_EQ(nice_step(0.21, 5), 0.05);
  EXPECT_DOUBLE_EQ(nice_step(1, 10), 0.1);
  for (double span = 1e-12; span < 1e12; span *= 1.37) {
    const double step = nice_step(span, 5);
    EXPECT_LE(span / step, 5.001) << span;
    EXPECT_GT(span / step, 1.9) << span;
  }
}

TEST(Ticks, linear_labels_have_no_noise) {
  EXPECT_EQ(linear_labels(0, 4000), "0 1k 2k 3k 4k");
  EXPECT_EQ(linear_labels(0, 2000), "0 500 1k 1.5k 2k");
  EXPECT_EQ(linear_labels(0, 0.5), "0 0.1 0.2 0.3 0.4 0.5");
  EXPECT_EQ(linear_labels(0.5, 2.5), "0.5 1.0 1.5 2.0 2.5");
  EXPECT_EQ(linear_labels(-20, 20), "-20 -10 0 10 20");
  EXPECT_EQ(linear_labels(0, 3e-5), "0 1e-5 2e-5 3e-5");
  EXPECT_EQ(linear_labels(1e6, 1000004), "1M 1.000001M 1.000002M 1.000003M 1.000004M");
}

TEST(Ticks, log_labels_over_decades_are_the_decades) {
  const auto ticks = log_ticks(0.01, 10);
  EXPECT_EQ(labels(ticks), "0.01 0.1 1 10");
  EXPECT_EQ(ticks.size(), 3u * 9 + 1);
  EXPECT_EQ(labels(log_ticks(5e4, 2e9)), "100k 1M 10M 100M 1G");
}

TEST(Ticks, log_labels_over_less_are_denser) {
  EXPECT_EQ(labels(log_ticks(0.05, 3)), "0.05 0.1 0.2 0.5 1 2");
  EXPECT_EQ(labels(log_ticks(2.5, 6.5)), "3 4 5 6");
  EXPECT_EQ(labels(log_ticks(1.1, 1.5)), "1.1 1.2 1.3 1.4 1.5");
}

TEST(Ticks, log_labels_over_very_many_decades_are_few) {
  EXPECT_EQ(labels(log_ticks(1e-200, 1e250)), "1e-200 1e-100 1 1e100 1e200");
  for (double hi = 10; hi < 1e300; hi *= 1e7) {
    const auto ticks = log_ticks(1e-3, hi);
    EXPECT_LE(ticks.size(), 70u) << hi;
    const auto labelled = [](const Tick& tick) { return !tick.label.empty(); };
    EXPECT_GE(std::count_if(ticks.begin(), ticks.end(), labelled), 3) << hi;
  }
}

}  // namespace
}  // namespace oktopk::ticks_test
