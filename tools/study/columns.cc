// SPDX-License-Identifier: Apache-2.0
// Tables from rows of JSON.
#include <fmt/format.h>

#include "tools/statistics.h"
#include "tools/study/study.h"

namespace oktopk {
namespace {

using nlohmann::json;

std::string with_decimals(double value, int decimals) { return fmt::format("{:.{}f}", value, decimals); }

}  // namespace

ReducerOptions method_of(std::string_view preset, double density) {
  ReducerOptions options;
  options.preset = preset;
  options.density = density;
  return options;
}

Column plain(const std::string& head, const std::string& key) {
  return {head, [key](const json& row) {
            const json& value = row.at(key);
            if (value.is_string()) return value.get<std::string>();
            return value.is_number_float() ? fmt::format("{:g}", value.get<double>()) : value.dump();
          }};
}

Column fixed(const std::string& head, const std::string& key, int decimals) {
  return {head, [=](const json& row) { return row.contains(key) ? with_decimals(row[key], decimals) : "-"; }};
}

Column mean(const std::string& head, const std::string& key, int decimals) {
  return {head, [=](const json& row) { return with_decimals(mean_of(row.at(key).get<Dense>()), decimals); }};
}

Column largest(const std::string& head, const std::string& key, int decimals) {
  return {head, [=](const json& row) { return with_decimals(max_of(row.at(key).get<Dense>()), decimals); }};
}

Table make_table(const std::string& caption, const std::vector<Column>& columns, const json& rows,
                 const std::string& key) {
  Table table{.caption = caption};
  for (const Column& column : columns) table.head.push_back(column.head);
  for (const json& row : rows) {
    if (!row.contains(key)) continue;
    table.rows.emplace_back();
    for (const Column& column : columns) table.rows.back().push_back(column.text(row));
  }
  return table;
}

Line over_steps(const std::string& name, const std::vector<double>& y) {
  Line series{.name = name, .y = y};
  for (std::size_t i = 0; i < y.size(); ++i) series.x.push_back(static_cast<double>(i));
  return series;
}

}  // namespace oktopk
