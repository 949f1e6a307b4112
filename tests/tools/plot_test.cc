// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "tests/tools/markup_checks.h"
#include "tools/page.h"

namespace oktopk::plot_test {
namespace {

const double kNan = std::numeric_limits<double>::quiet_NaN();
const double kInf = std::numeric_limits<double>::infinity();

Plot with(std::vector<Line> series) {
  return {.title = "T", .x_label = "step", .y_label = "loss", .series = std::move(series)};
}

// The data of the lines; those of the legend are horizontal and say so with an h.
std::vector<std::string> lines(const std::string& svg) {
  std::vector<std::string> found;
  for (std::size_t at = svg.find("<path"); at != std::string::npos; at = svg.find("<path", at + 1)) {
    const std::size_t begin = svg.find(" d=\"", at) + 4;
    const std::string data = svg.substr(begin, svg.find('"', begin) - begin);
    if (data.find('h') == std::string::npos) found.push_back(data);
  }
  return found;
}

TEST(Plot, line_is_labelled_and_drawn) {
  const std::string svg = to_figure(with({{"dense", {0, 1, 2}, {3, 2, 1}}}));
  expect_sound(svg);
  for (const char* part : {">T<", ">step<", ">loss<", ">dense<", "dense\nstep: 2\nloss: 1<"})
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  ASSERT_EQ(lines(svg).size(), 1u);
  EXPECT_EQ(count(lines(svg)[0], "L"), 2u);
}

TEST(Plot, same_input_gives_same_bytes) {
  const Plot plot = with({{"a", {0, 1, 2}, {3, 2, 1}}, {"b", {1, 2}, {1, 5}}});
  EXPECT_EQ(to_figure(plot), to_figure(plot));
}

TEST(Plot, special_characters_in_any_text_are_escaped) {
  const std::string evil = "<b>&\"x\"</b>";
  Plot plot = {.title = evil, .x_label = evil, .y_label = evil, .note = evil};
  plot.series = {{evil, {0, 1, 2}, {3, 2, 1}}};
  const std::string svg = to_figure(plot);
  expect_sound(svg);
  EXPECT_EQ(svg.find("<b>"), std::string::npos);
  EXPECT_GE(count(svg, "&lt;b&gt;&amp;&quot;x&quot;&lt;/b&gt;"), 6u);
}

TEST(Plot, values_that_are_not_finite_break_the_line) {
  const std::string svg = to_figure(with({{"a", {0, 1, 2, 3, 4, 5}, {1, 2, kNan, 3, kInf, 4}}}));
  expect_sound(svg);
  ASSERT_EQ(lines(svg).size(), 1u);
  EXPECT_EQ(count(lines(svg)[0], "M"), 3u);
  EXPECT_EQ(count(lines(svg)[0], "L"), 1u);
  EXPECT_EQ(svg.find("Not shown"), std::string::npos);
}

TEST(Plot, degenerate_series_are_sound) {
  const std::vector<std::vector<Line>> cases = {{},
                                                {{"empty", {}, {}}},
                                                {{"one", {3}, {5}}},
                                                {{"one at zero", {0}, {0}}},
                                                {{"equal", {0, 1, 2}, {7, 7, 7}}},
                                                {{"same x", {4, 4, 4}, {1, 2, 3}}},
                                                {{"nothing finite", {0, 1, kNan}, {kNan, kInf, 1}}},
                                                {{"uneven", {0, 1, 2}, {5}}},
                                                {{"huge", {-1e308, 0, 1e308}, {-1.7e308, 1, 1.7e308}}},
                                                {{"large", {-1e300, 1e300}, {-1e300, 1e300}}},
                                                {{"tiny", {0, 5e-324}, {5e-324, 1e-310}}},
                                                {{"near", {1e15, 1e15 + 1}, {1, 1 + 1e-15}}},
                                                {{"", {0, 1}, {1, 2}, false, 1000000}, {"", {}, {}, true, -5}}};
  for (const auto& series : cases) {
    for (const int logs : {0, 1, 2, 3}) {
      Plot plot = with(series);
      plot.log_x = (logs & 1) != 0;
      plot.log_y = (logs & 2) != 0;
      expect_sound(to_figure(plot));
    }
  }
  EXPECT_NE(to_figure(with({})).find("no data"), std::string::npos);
}

TEST(Plot, lone_point_is_a_dot) {
  const std::string svg = to_figure(with({{"a", {3}, {5}}}));
  EXPECT_EQ(count(svg, "class=\"dot\""), 1u);
}

TEST(Plot, log_axis_drops_what_it_cannot_show_and_says_so) {
  Plot plot = with({{"a", {0, 1, 2, 3, 4}, {1, 0, -2, 3, kNan}}});
  plot.log_y = true;
  plot.note = "A note.";
  EXPECT_NE(to_figure(plot).find("A note. Not shown on the logarithmic scale: 2 values"), std::string::npos);
  plot.log_x = true;
  const std::string svg = to_figure(plot);
  expect_sound(svg);
  EXPECT_NE(svg.find("3 values"), std::string::npos);
  plot.series[0].y = {1, 1, -2, 3, 4};
  plot.log_x = false;
  EXPECT_NE(to_figure(plot).find("1 value at"), std::string::npos);
}

TEST(Plot, colours_are_chosen_or_by_position) {
  const std::string svg = to_figure(with({{"a", {0, 1}, {1, 2}},
                                          {"b", {0, 1}, {2, 3}, true, 7},
                                          {"c", {0, 1}, {2, 3}, false, kColours + 3},
                                          {"d", {0, 1}, {2, 3}}}));
  for (const char* colour : {"c0", "c7", "c3"})
    EXPECT_GE(count(svg, std::string("<g class=\"") + colour + "\">"), 1u) << colour;
  EXPECT_EQ(count(svg, "<g class=\"c3\">"), 2u);
  EXPECT_EQ(count(svg, "class=\"key line c3\""), 2u);
  EXPECT_EQ(count(svg, "class=\"line dashed\""), 1u);
  EXPECT_EQ(count(svg, "class=\"key dashed c7\""), 1u);
}

TEST(Plot, series_of_dots_has_no_line) {
  Plot plot = with({{"a", {0, 1, 2}, {1, 2, 3}}});
  plot.series[0].dots = true;
  const std::string svg = to_figure(plot);
  expect_sound(svg);
  EXPECT_TRUE(lines(svg).empty());
  EXPECT_EQ(count(svg, "class=\"dot\""), 3u);
  EXPECT_EQ(count(svg, "class=\"key dots c0\""), 1u);
}

}  // namespace
}  // namespace oktopk::plot_test
