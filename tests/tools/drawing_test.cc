// SPDX-License-Identifier: Apache-2.0
#include "tools/page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/tools/markup_checks.h"

namespace oktopk::drawing_test {
namespace {

std::string labels(const Axis& axis) {
  std::string joined;
  for (const Tick& tick : axis.ticks)
    if (!tick.label.empty()) joined += (joined.empty() ? "" : " ") + tick.label;
  return joined;
}

TEST(Axis, can_show_asks_for_finite_and_on_log_positive) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(can_show(-1, false));
  EXPECT_TRUE(can_show(0, false));
  for (const double value : {inf, -inf, std::nan("")}) EXPECT_FALSE(can_show(value, false));
  EXPECT_TRUE(can_show(1e-299, true));
  for (const double value : {0.0, -1.0, inf, std::nan("")}) EXPECT_FALSE(can_show(value, true));
}

TEST(Axis, ends_are_ticks) {
  for (const bool log : {false, true}) {
    const Axis axis = make_axis({0.37, 8.2}, log);
    ASSERT_GE(axis.ticks.size(), 3u);
    EXPECT_NEAR(axis.ticks.front().value, axis.lo, 1e-12);
    EXPECT_NEAR(axis.ticks.back().value, axis.hi, 1e-12);
    EXPECT_LE(axis.lo, 0.37);
    EXPECT_GE(axis.hi, 8.2);
  }
}

TEST(Axis, positions_are_proportional_or_logarithmic) {
  const Axis linear = make_axis({0, 10}, false);
  EXPECT_DOUBLE_EQ(linear.at(0), 0);
  EXPECT_DOUBLE_EQ(linear.at(2.5), 25);
  Axis log = make_axis({1, 100}, true);
  log.first = 200;
  EXPECT_DOUBLE_EQ(log.at(1), 200);
  EXPECT_DOUBLE_EQ(log.at(10), 150);
}

TEST(Axis, near_end_goes_to_zero_and_far_end_to_the_next_tick) {
  EXPECT_EQ(make_axis({1, 3999}, false).lo, 0);
  EXPECT_EQ(make_axis({1, 3999}, false).hi, 4000);
  EXPECT_EQ(make_axis({900, 1000}, false).lo, 900);
}

TEST(Axis, equal_values_get_an_axis_around_them) {
  for (const bool log : {false, true})
    for (const double value : {1e-290, 0.3, 5.0, 1e290}) {
      const Axis axis = make_axis({value, value}, log);
      EXPECT_LT(axis.lo, value) << value;
      EXPECT_GT(axis.hi, value) << value;
      EXPECT_GE(axis.ticks.size(), 2u) << value;
    }
  EXPECT_EQ(make_axis({0}, false).lo, 0);
  EXPECT_EQ(make_axis({0}, false).hi, 1);
  EXPECT_TRUE(make_axis({}, false).ticks.empty());
}

TEST(Axis, any_extent_has_finite_positions_and_few_ticks) {
  const double values[] = {-1e300, -1, -1e-300, 0, 5e-324, 1e-300, 1, 1 + 1e-15, 1e300};
  for (const double a : values)
    for (const double b : values)
      for (const bool log : {false, true}) {
        if (a > b || !can_show(a, log) || !can_show(b, log)) continue;
        const Axis axis = make_axis({a, b}, log);
        EXPECT_TRUE(std::isfinite(axis.at(a)) && std::isfinite(axis.at(b))) << a << ' ' << b;
        EXPECT_GE(axis.at(a), -1e-6) << a << ' ' << b;
        EXPECT_LE(axis.at(b), 100 + 1e-6) << a << ' ' << b;
        EXPECT_LE(axis.ticks.size(), 70u) << a << ' ' << b;
      }
}

TEST(Axis, linear_labels_have_no_noise) {
  EXPECT_EQ(labels(make_axis({0, 4000}, false)), "0 1k 2k 3k 4k");
  EXPECT_EQ(labels(make_axis({0, 2000}, false)), "0 500 1k 1.5k 2k");
  EXPECT_EQ(labels(make_axis({0, 0.5}, false)), "0 0.1 0.2 0.3 0.4 0.5");
  EXPECT_EQ(labels(make_axis({-20, 20}, false)), "-20 -10 0 10 20");
  EXPECT_EQ(labels(make_axis({0, 3e-5}, false)), "0 1e-5 2e-5 3e-5");
  EXPECT_EQ(labels(make_axis({1e6, 1000004}, false)), "1M 1.000001M 1.000002M 1.000003M 1.000004M");
}

TEST(Axis, log_labels_are_decades_or_denser) {
  EXPECT_EQ(labels(make_axis({0.01, 10}, true)), "0.01 0.1 1 10");
  EXPECT_EQ(make_axis({0.01, 10}, true).ticks.size(), 3u * 9 + 1);
  EXPECT_EQ(labels(make_axis({5e4, 2e9}, true)), "100k 1M 10M 100M 1G");
  EXPECT_EQ(labels(make_axis({0.05, 3}, true)), "0.05 0.1 0.2 0.5 1 2");
  EXPECT_EQ(labels(make_axis({3, 6}, true)), "3 4 5 6");
}

TEST(Axis, log_labels_over_very_many_decades_are_few) {
  EXPECT_EQ(labels(make_axis({1e-200, 1e250}, true)), "1e-200 1e-100 1 1e100 1e200");
  for (double hi = 10; hi < 1e290; hi *= 1e7) {
    const auto ticks = make_axis({1e-3, hi}, true).ticks;
    EXPECT_LE(ticks.size(), 70u) << hi;
    EXPECT_GE(std::ranges::count_if(ticks, [](const Tick& tick) { return !tick.label.empty(); }), 3) << hi;
  }
}

TEST(FormatValue, values_are_short_and_rounded) {
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
  EXPECT_EQ(format_value(std::nan("")), "n/a");
  EXPECT_EQ(format_value(std::numeric_limits<double>::infinity()), "inf");
}

TEST(Markup, escape_of_special_characters_is_harmless) {
  EXPECT_EQ(escape("<a href=\"x\">'&'</a>"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
  EXPECT_EQ(escape("plain, \xC3\xA9\n\t"), "plain, \xC3\xA9\n\t");
  EXPECT_EQ(escape(std::string("a\0b\x01\x1F\x7F", 6)), "ab");
}

TEST(Markup, px_has_one_decimal_and_no_negative_zero) {
  EXPECT_EQ(px(12), "12");
  EXPECT_EQ(px(12.34), "12.3");
  EXPECT_EQ(px(-0.01), "0");
  EXPECT_EQ(px(-3.96), "-4");
}

TEST(MarkupChecks, checker_sees_what_is_wrong) {
  EXPECT_EQ(markup_error("<a b=\"c\"><d/>e</a>"), "");
  for (const char* bad : {"<a>", "</a>", "<a><b></a></b>", "<a b=c></a>", "<a", "a < b <c></c>"})
    EXPECT_NE(markup_error(bad), "") << bad;
}

}  // namespace
}  // namespace oktopk::drawing_test
