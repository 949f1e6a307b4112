// SPDX-License-Identifier: Apache-2.0
// Parts that studies share: streams of gradients, and tables from rows of JSON.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lab/study/study.h"
#include "oktopk/base/error.h"
#include "tools/statistics.h"

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

double deviation_of(std::span<const double> values) {
  if (values.size() < 2) return 0;
  const double mean = mean_of(values);
  double squares = 0;
  for (const double v : values) squares += (v - mean) * (v - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

double imbalance(std::span<const double> values) {
  const double mean = mean_of(values);
  return mean > 0 ? max_of(values) / mean : 1;
}

std::vector<double> mean_over_ranks(std::span<const std::vector<double>> by_rank) {
  std::vector<double> mean(by_rank.empty() ? 0 : by_rank[0].size(), 0.0);
  for (const std::vector<double>& rank : by_rank)
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += rank[i] / static_cast<double>(by_rank.size());
  return mean;
}

double norm1(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0, [](double sum, double v) { return sum + std::fabs(v); });
}

double norm2(std::span<const double> values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
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
