// SPDX-License-Identifier: Apache-2.0
#include "tools/report/axes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace oktopk::axes_test {
namespace {

Extent extent(std::initializer_list<double> values) {
  Extent result;
  for (const double value : values) result.add(value);
  return result;
}

TEST(Axes, can_show_asks_for_finite_and_on_log_positive) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(can_show(-1, false));
  EXPECT_TRUE(can_show(0, false));
  for (const double value : {inf, -inf, std::nan("")}) EXPECT_FALSE(can_show(value, false));
  EXPECT_TRUE(can_show(1e-299, true));
  for (const double value : {0.0, -1.0, inf, std::nan("")}) EXPECT_FALSE(can_show(value, true));
}

TEST(Axes, ends_of_rounded_axis_are_ticks) {
  for (const bool log : {false, true}) {
    const Axis axis = make_axis(extent({0.37, 8.2}), {.log = log, .round_ends = true});
    ASSERT_GE(axis.ticks.size(), 3u);
    EXPECT_NEAR(axis.ticks.front().value, axis.lo, 1e-12);
    EXPECT_NEAR(axis.ticks.back().value, axis.hi, 1e-12);
    EXPECT_LE(axis.lo, 0.37);
    EXPECT_GE(axis.hi, 8.2);
  }
}

TEST(Axes, positions_are_proportional_or_logarithmic) {
  Axis linear = make_axis(extent({0, 10}), {});
  EXPECT_DOUBLE_EQ(linear.at(0), 0);
  EXPECT_DOUBLE_EQ(linear.at(2.5), 25);
  Axis log = make_axis(extent({1, 100}), {.log = true});
  log.first = 200;
  EXPECT_DOUBLE_EQ(log.at(1), 200);
  EXPECT_DOUBLE_EQ(log.at(10), 150);
}

TEST(Axes, near_end_goes_to_zero_and_far_end_to_the_next_tick) {
  const Axis axis = make_axis(extent({1, 3999}), {.reach = 0.03, .zero_below = 0.05});
  EXPECT_EQ(axis.lo, 0);
  EXPECT_EQ(axis.hi, 4000);
  EXPECT_EQ(make_axis(extent({900, 1000}), {.zero_below = 0.05}).lo, 900);
}

TEST(Axes, equal_values_get_an_axis_around_them) {
  for (const bool log : {false, true}) {
    for (const double value : {1e-290, 0.3, 5.0, 1e290}) {
      const Axis axis = make_axis(extent({value, value}), {.log = log, .round_ends = true});
      EXPECT_LT(axis.lo, value) << value;
      EXPECT_GT(axis.hi, value) << value;
      EXPECT_GE(axis.ticks.size(), 2u) << value;
    }
  }
  const Axis zero = make_axis(extent({0}), {});
  EXPECT_EQ(zero.lo, 0);
  EXPECT_EQ(zero.hi, 1);
}

TEST(Axes, any_extent_has_finite_positions_and_few_ticks) {
  const double values[] = {-1e300, -1, -1e-300, 0, 5e-324, 1e-300, 1, 1 + 1e-15, 1e300};
  for (const double a : values) {
    for (const double b : values) {
      for (const bool log : {false, true}) {
        if (!can_show(a, log) || !can_show(b, log)) continue;
        for (const bool round : {false, true}) {
          const Axis axis = make_axis(extent({a, b}), {.log = log, .round_ends = round});
          EXPECT_TRUE(std::isfinite(axis.at(a)) && std::isfinite(axis.at(b))) << a << ' ' << b;
          EXPECT_GE(axis.at(a), -1e-6) << a << ' ' << b;
          EXPECT_LE(axis.at(b), 100 + 1e-6) << a << ' ' << b;
          EXPECT_LE(axis.ticks.size(), 70u) << a << ' ' << b;
        }
      }
    }
  }
}

TEST(Axes, nothing_to_show_has_no_ticks) { EXPECT_TRUE(make_axis({}, {}).ticks.empty()); }

}  // namespace
}  // namespace oktopk::axes_test
