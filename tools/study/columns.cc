// SPDX-License-Identifier: Apache-2.0
// Tables from rows of JSON.
#include "tools/statistics.h"
#include "tools/study/study.h"

namespace oktopk {
using nlohmann::json;

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
