// SPDX-License-Identifier: Apache-2.0
// Plots of bars in groups, for the pages of tools/page.h. On a linear axis bars begin at zero; on a logarithmic one
// they begin at its lower end, and only their tips mean something. Long labels of groups slope. A plot with many bars
// is as wide as the page.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/page.h"

namespace oktopk {

struct BarSet {
  std::string name;
  std::vector<double> values;  // one per group; NaN, null in JSON: no bar
  int colour = -1;             // as in Line
};

struct Bars {
  std::string title, y_label;
  std::vector<std::string> groups;  // along x
  std::vector<BarSet> sets;
  bool log_y = false;
  std::vector<double> references;  // lines across
  std::string reference_label;
  std::string note;
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(BarSet, name, values, colour)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Bars, title, y_label, groups, sets, log_y, references, reference_label,
                                                note)

// A <figure>, as of a Plot.
std::string to_figure(const Bars& bars);

// The figure of a Plot or of Bars: `figure_of` of to_html() for the pages of the lab.
std::string any_figure(const nlohmann::json& plot);

}  // namespace oktopk
