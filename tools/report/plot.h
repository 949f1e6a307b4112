// SPDX-License-Identifier: Apache-2.0
// Plots as text: lines over a number, bars over names, each as one <svg> for Page::plots().
// Every colour is a class that the page's style resolves, so that a plot follows the reader's light
// or dark mode. What cannot be drawn (not finite, or not positive on a logarithmic axis) is left
// out; values left out because of the axis are counted in the note. The same input gives the same
// bytes.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace oktopk {

constexpr int kColours = 9;  // of the palette, safe for colour-blind readers; then they repeat

// A value that is not finite breaks the line; of x and y, the shorter one gives the length.
struct Series {
  std::string name;
  std::vector<double> x, y;
  bool dashed = false;
  int colour = -1;     // an index of the palette; -1: by position
  bool faint = false;  // measurements behind their smoothed line: thin, pale, not in the legend
};

struct Plot {
  std::string title, x_label, y_label;
  bool log_x = false, log_y = false;
  std::vector<Series> series;
  std::string note;
};

struct Bars {
  struct Set {
    std::string name;
    std::vector<double> values;  // one per group; NaN: absent
    int colour = -1;             // as in Series
  };

  std::string title, y_label;
  std::vector<std::string> groups;  // along x
  std::vector<Set> sets;
  bool log_y = false;
  double reference = std::numeric_limits<double>::quiet_NaN();  // a line across, unless NaN
  std::string reference_label;
  std::string note;
};

std::string to_svg(const Plot& plot);
std::string to_svg(const Bars& bars);

// The series with every finite y replaced by the mean of the finite ones among the `window` points
// around it.
Series smoothed(Series series, std::size_t window);

}  // namespace oktopk
