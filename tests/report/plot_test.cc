// SPDX-License-Identifier: Apache-2.0
#include "tools/report/plot.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/report/markup_checks.h"

namespace oktopk::plot_test {
namespace {

const double kNan = std::numeric_limits<double>::quiet_NaN();
const double kInf = std::numeric_limits<double>::infinity();

Plot with(std::vector<Series> series) {
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
  const std::string svg = to_svg(with({{"dense", {0, 1, 2}, {3, 2, 1}}}));
  expect_sound(svg);
  for (const char* part : {">T<", ">step<", ">loss<", ">dense<", "dense\nstep: 2\nloss: 1<"})
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  ASSERT_EQ(lines(svg).size(), 1u);
  EXPECT_EQ(count(lines(svg)[0], "L"), 2u);
}

TEST(Plot, same_input_gives_same_bytes) {
  const Plot plot = with({{"a", {0, 1, 2}, {3, 2, 1}}, {"b", {1, 2}, {1, 5}}});
  EXPECT_EQ(to_svg(plot), to_svg(plot));
}

TEST(Plot, special_characters_in_any_text_are_escaped) {
  const std::string evil = "<b>&\"x\"</b>";
  Plot plot = {.title = evil, .x_label = evil, .y_label = evil, .note = evil};
  plot.series = {{evil, {0, 1, 2}, {3, 2, 1}}};
  const std::string svg = to_svg(plot);
  expect_sound(svg);
  EXPECT_EQ(svg.find("<b>"), std::string::npos);
  EXPECT_GE(count(svg, "&lt;b&gt;&amp;&quot;x&quot;&lt;/b&gt;"), 6u);
}

TEST(Plot, values_that_are_not_finite_break_the_line) {
  const std::string svg = to_svg(with({{"a", {0, 1, 2, 3, 4, 5}, {1, 2, kNan, 3, kInf, 4}}}));
  expect_sound(svg);
  ASSERT_EQ(lines(svg).size(), 1u);
  EXPECT_EQ(count(lines(svg)[0], "M"), 3u);
  EXPECT_EQ(count(lines(svg)[0], "L"), 1u);
  EXPECT_EQ(svg.find("Not shown"), std::string::npos);
}

TEST(Plot, degenerate_series_are_sound) {
  const std::vector<std::vector<Series>> cases = {{},
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
      expect_sound(to_svg(plot));
    }
  }
  EXPECT_NE(to_svg(with({})).find("no data"), std::string::npos);
}

TEST(Plot, lone_point_is_a_dot) {
  const std::string svg = to_svg(with({{"a", {3}, {5}}}));
  EXPECT_EQ(count(svg, "class=\"dot\""), 1u);
}

TEST(Plot, log_axis_drops_what_it_cannot_show_and_says_so) {
  Plot plot = with({{"a", {0, 1, 2, 3, 4}, {1, 0, -2, 3, kNan}}});
  plot.log_y = true;
  plot.note = "A note.";
  EXPECT_NE(to_svg(plot).find("A note. Not shown on the logarithmic scale: 2 values"), std::string::npos);
  plot.log_x = true;
  const std::string svg = to_svg(plot);
  expect_sound(svg);
  EXPECT_NE(svg.find("3 values"), std::string::npos);
  plot.series[0].y = {1, 1, -2, 3, 4};
  plot.log_x = false;
  EXPECT_NE(to_svg(plot).find("1 value at"), std::string::npos);
}

TEST(Plot, long_series_is_thinned_and_its_spike_remains) {
  Series series = {.name = "a"};
  for (int i = 0; i < 10000; ++i) {
    series.x.push_back(i);
    series.y.push_back(1 + 0.1 * std::sin(i));
  }
  series.y[7777] = 10;
  const std::string svg = to_svg(with({series}));
  expect_sound(svg);
  const std::string line = lines(svg).at(0);
  EXPECT_LE(count(line, "L"), 610u);
  // The spike is at the top tick, where the topmost grid line is.
  const auto grid = attributes(svg, "y1");
  const double top = *std::min_element(grid.begin(), grid.end());
  EXPECT_NE(line.find(" " + std::to_string(static_cast<int>(top)) + "L"), std::string::npos);
  EXPECT_LE(count(svg, "<title>"), 20u);
  EXPECT_GE(count(svg, "<title>"), 10u);
  EXPECT_LT(svg.size(), 20000u);
}

TEST(Plot, colours_are_chosen_or_by_position) {
  const std::string svg = to_svg(with({{"a", {0, 1}, {1, 2}},
                                       {"b", {0, 1}, {2, 3}, true, 7},
                                       {"c", {0, 1}, {2, 3}, false, kColours + 3},
                                       {"d", {0, 1}, {2, 3}}}));
  for (const char* colour : {"c0", "c7", "c3"})
    EXPECT_GE(count(svg, std::string("<g class=\"") + colour + "\">"), 2u) << colour;
  EXPECT_EQ(count(svg, "<g class=\"c3\">"), 4u);
  EXPECT_EQ(count(svg, "class=\"line dashed\""), 2u);
}

TEST(Plot, faint_series_is_behind_and_not_in_the_legend) {
  Series smooth = {"smooth", {0, 1, 2}, {1, 2, 3}};
  Series raw = {"measured", {0, 1, 2}, {1, 2, 3}, false, 0, true};
  const std::string svg = to_svg(with({smooth, raw}));
  expect_sound(svg);
  EXPECT_EQ(svg.find("measured"), std::string::npos);
  EXPECT_EQ(count(svg, "<g class=\"c0 faint\">"), 1u);
  EXPECT_GT(svg.rfind("<g class=\"c0\">"), svg.find("<g class=\"c0 faint\">"));
}

TEST(Plot, long_text_makes_the_plot_higher_and_not_wider) {
  Plot plot = with({});
  for (int i = 0; i < 12; ++i) plot.series.push_back({"a rather long name " + std::to_string(i), {0, 1}, {1, 2}});
  plot.note = std::string(100, 'x') + std::string(300, ' ') + "many words in a note, again and again";
  const std::string low = to_svg(with({})), high = to_svg(plot);
  expect_sound(high);
  const auto height = [](const std::string& svg) { return std::stod(svg.substr(svg.find("viewBox=\"0 0 520 ") + 17)); };
  EXPECT_GT(height(high), height(low) + 60);
  for (const double x : attributes(high, "x")) EXPECT_LT(x, 520);
}

}  // namespace
}  // namespace oktopk::plot_test
