// SPDX-License-Identifier: Apache-2.0
// Parts that studies share: streams of gradients, and tables from rows of JSON.
#include <fmt/format.h>

#include <algorithm>

#include "oktopk/base/error.h"
#include "tools/statistics.h"
#include "tools/study/study.h"

namespace oktopk {
using nlohmann::json;

void check_stream(const std::string& data) {
  std::vector<std::string> names = {"calm", "rough", "identical"};
  for (const InputInfo& input : inputs()) names.emplace_back(input.name);
  require(std::ranges::find(names, data) != names.end(), "unknown data '", data,
          "'; there are: ", fmt::format("{}", fmt::join(names, ", ")));
}

GradientStream StudyTask::stream(const std::string& name, int rank) const {
  check_stream(name);
  StreamSpec spec{.n = n, .steps = static_cast<std::uint64_t>(steps), .seed = seed};
  if (name == "identical") return GradientStream(spec, 0);
  const bool is_rough = name == "rough";
  if (is_rough || name == "calm") {
    spec.data = Input::layered;
    spec.shared = 0.5;
    spec.event = is_rough ? StreamEvent::rough : StreamEvent::none;
  } else {
    spec.data = find_input(name);
  }
  return GradientStream(spec, rank);
}

ReducerOptions method_of(std::string_view preset, double density) {
  ReducerOptions options;
  options.preset = preset;
  options.density = density;
  return options;
}

Column::Format mean(int decimals) {
  return [=](const json& values) { return format_fixed(mean_of(values.get<Dense>()), decimals); };
}

Column::Format largest(int decimals) {
  return [=](const json& values) { return format_fixed(max_of(values.get<Dense>()), decimals); };
}

Table make_table(const std::string& caption, const std::vector<Column>& columns, const json& rows,
                 const std::string& key) {
  Table table{.caption = caption};
  for (const Column& column : columns) table.head.push_back(column.head);
  for (const json& row : rows) {
    if (!row.contains(key)) continue;
    table.rows.emplace_back();
    for (const Column& column : columns) table.rows.back().push_back(column.cell(row));
  }
  return table;
}

Line over_steps(const std::string& name, const std::vector<double>& y) {
  Line series{.name = name, .y = y};
  for (std::size_t i = 0; i < y.size(); ++i) series.x.push_back(static_cast<double>(i));
  return series;
}

}  // namespace oktopk
