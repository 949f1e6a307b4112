// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "lab/bars.h"
#include "tests/tools/markup_checks.h"

namespace oktopk::bars_test {
namespace {

const double kNan = std::numeric_limits<double>::quiet_NaN();

Bars two_by_three() {
  return {.title = "T",
          .y_label = "words",
          .groups = {"dense", "oktopk", "circulant"},
          .sets = {{"P = 6", {4, 2, 1}}, {"P = 8", {8, 4, 2}, 5}}};
}

// Heights of the bars; the boxes of the legend have no title.
std::vector<double> heights(const std::string& svg) {
  std::vector<double> found;
  const std::regex bar(R"re(<rect class="bar c[0-9]"[^>]* height="([0-9.]+)"[^>]*><title>)re");
  for (std::sregex_iterator it(svg.begin(), svg.end(), bar), end; it != end; ++it) found.push_back(std::stod((*it)[1]));
  return found;
}

TEST(Bars, heights_are_proportional_to_values) {
  const std::string svg = to_figure(two_by_three());
  expect_sound(svg);
  const auto h = heights(svg);
  ASSERT_EQ(h.size(), 6u);
  const std::vector<double> values = {4, 8, 2, 4, 1, 2};
  for (std::size_t i = 0; i < h.size(); ++i) EXPECT_NEAR(h[i] / h[1], values[i] / 8, 0.01) << i;
}

TEST(Bars, text_and_colours_are_there) {
  const std::string svg = to_figure(two_by_three());
  for (const char* part : {">T<", ">words<", ">dense<", ">P = 6<", "oktopk\nP = 8: 4<"})
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  EXPECT_EQ(count(svg, "class=\"bar c0\""), 3u);
  EXPECT_EQ(count(svg, "class=\"bar c5\""), 3u);
  EXPECT_EQ(count(svg, "<span class=\"key box c5\">"), 1u);
  EXPECT_EQ(svg, to_figure(two_by_three()));
}

TEST(Bars, special_characters_in_any_text_are_escaped) {
  const std::string evil = "<b>&\"x\"";
  const Bars bars = {.title = evil,
                     .y_label = evil,
                     .groups = {evil, evil},
                     .sets = {{evil, {1, 2}}},
                     .references = {1},
                     .reference_label = evil,
                     .note = evil};
  const std::string svg = to_figure(bars);
  expect_sound(svg);
  EXPECT_EQ(svg.find("<b>"), std::string::npos);
  EXPECT_GE(count(svg, "&lt;b&gt;&amp;&quot;x&quot;"), 8u);
}

TEST(Bars, absent_values_leave_a_gap) {
  Bars bars = two_by_three();
  bars.sets[0].values = {kNan, 2};
  const std::string svg = to_figure(bars);
  expect_sound(svg);
  EXPECT_EQ(heights(svg).size(), 4u);
  EXPECT_EQ(svg.find("Not shown"), std::string::npos);
}

TEST(Bars, log_axis_drops_what_it_cannot_show_and_says_so) {
  Bars bars = two_by_three();
  bars.log_y = true;
  bars.sets[0].values = {0, -2, 1};
  const std::string svg = to_figure(bars);
  expect_sound(svg);
  EXPECT_EQ(heights(svg).size(), 4u);
  EXPECT_NE(svg.find("2 values at or below zero"), std::string::npos);
  for (const double height : heights(svg)) EXPECT_GT(height, 5);
}

TEST(Bars, negative_values_hang_from_zero) {
  Bars bars = two_by_three();
  bars.sets = {{"", {-3, 0, 3}}};
  const std::string svg = to_figure(bars);
  expect_sound(svg);
  const auto h = heights(svg);
  ASSERT_EQ(h.size(), 3u);
  EXPECT_NEAR(h[0], h[2], 0.11);
  EXPECT_EQ(h[1], 1);
}

TEST(Bars, reference_is_a_line_in_the_legend_too) {
  Bars bars = two_by_three();
  EXPECT_EQ(count(to_figure(bars), "class=\"reference\""), 0u);
  bars.references = {20};
  bars.reference_label = "lower bound";
  const std::string svg = to_figure(bars);
  expect_sound(svg);
  EXPECT_EQ(count(svg, "class=\"reference\""), 1u);
  EXPECT_EQ(count(svg, "class=\"key reference \""), 1u);
  EXPECT_EQ(count(svg, ">lower bound<"), 1u);
  EXPECT_LT(heights(svg)[1], heights(to_figure(two_by_three()))[1]);
}

TEST(Bars, degenerate_input_is_sound) {
  std::vector<Bars> cases(7);
  cases[1].groups = {"a", "b"};
  cases[2].sets = {{"no groups", {1, 2}}};
  cases[3] = {.groups = {"a"}, .sets = {{"x", {0}}}};
  cases[4] = {.groups = {"a"}, .sets = {{"x", {kNan}}}, .references = {3}};
  cases[5] = {.groups = {"a", "b", "c"}, .sets = {{"x", {1e300, -1e300, 1.7e308}}}};
  cases[6] = {.groups = {"a", "b", "c"}, .sets = {{"x", {1e-300, 5e-324, 1e300}}, {"y", {}}}};
  for (Bars bars : cases) {
    expect_sound(to_figure(bars));
    bars.log_y = true;
    expect_sound(to_figure(bars));
  }
  EXPECT_NE(to_figure(cases[4]).find("no data"), std::string::npos);
}

TEST(Bars, long_names_of_groups_slope_and_many_bars_are_wide) {
  Bars bars = {.title = "T"};
  bars.sets.resize(5);
  for (int g = 0; g < 60; ++g) {
    bars.groups.push_back("a group with a long name, number " + std::to_string(g));
    for (auto& set : bars.sets) set.values.push_back(g);
  }
  const std::string many = to_figure(bars);
  expect_sound(many);
  EXPECT_NE(many.find("<figure class=\"wide\">"), std::string::npos);
  EXPECT_NE(many.find("rotate(-35)"), std::string::npos);
  EXPECT_EQ(to_figure(two_by_three()).find("rotate"), std::string::npos);
}

TEST(Bars, stand_on_a_page_beside_lines) {
  const nlohmann::json plots = {Plot{.title = "lines", .series = {{"a", {0, 1}, {1, 2}}}}, two_by_three()};
  const nlohmann::json document = {{"title", "T"}, {"parts", {{{"plots", plots}}}}};
  const std::string html = to_html(document, any_figure);
  EXPECT_EQ(markup_error(html), "");
  EXPECT_EQ(count(html, "<svg"), 2u);
  EXPECT_EQ(heights(html).size(), 6u);
}

}  // namespace
}  // namespace oktopk::bars_test
