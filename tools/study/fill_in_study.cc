// SPDX-License-Identifier: Apache-2.0
// `oktopk study fill-in`: how many non-zeros a result has as P grows, and how unions grow on the
// way.
#include <fmt/format.h>

#include "oktopk/allreduce/presets.h"
#include "oktopk/tune/cost.h"
#include "tools/report/plot.h"
#include "tools/study/fill_in.h"
#include "tools/study/study.h"

namespace oktopk {
namespace {

Table updates_table() {
  Table table{.head = {"data", "P"}, .caption = "entries of the update / k"};
  for (const Preset& preset : presets())
    if (preset.name != "dense") table.head.emplace_back(preset.name);
  return table;
}

void report_updates(Findings& out, const FillInRun& run, const std::string& data, int P) {
  std::vector<std::string> cells = {data, fmt::format("{}", P)};
  nlohmann::json row = {{"data", data}, {"ranks", P}, {"k", run.k}};
  for (const auto& [preset, per_k] : run.updates) {
    cells.push_back(fmt::format("{:.2f}", per_k));
    row["update_per_k"][preset] = per_k;
  }
  for (const UnionSize& u : run.unions)
    row["unions"].push_back({{"m", u.m}, {"per_k", u.per_k}, {"exponent", u.exponent}});
  out.tables[0].rows.push_back(std::move(cells));
  out.rows.push_back(std::move(row));
}

// `union_of` with the exponent that fits at m = P: what it says of the phases in between.
void report_unions(Findings& out, const FillInRun& run, const std::string& data, const StudyTask& task, Plot& plot) {
  if (run.unions.empty()) return;
  Problem problem{.n = static_cast<double>(task.n), .k = static_cast<double>(run.k), .P = run.unions.back().m};
  problem.union_exponent = problem.exponent_of(problem.k * run.unions.back().per_k);
  Series observed{.name = data, .colour = static_cast<int>(plot.series.size() / 2)};
  Series model{.name = data + ", union_of", .dashed = true, .colour = observed.colour};
  for (const UnionSize& u : run.unions) {
    const double modelled = problem.union_of(u.m) / problem.k;
    out.tables[1].rows.push_back({data, fmt::format("{}", u.m), fmt::format("{:.3f}", u.per_k),
                                  u.m == 1 ? "-" : fmt::format("{:.3f}", u.exponent), fmt::format("{:.3f}", modelled),
                                  fmt::format("{:.3f}", independent_union(problem.n, problem.k, u.m))});
    observed.x.push_back(u.m);
    observed.y.push_back(u.per_k);
    model.x.push_back(u.m);
    model.y.push_back(modelled);
  }
  plot.series.push_back(std::move(observed));
  plot.series.push_back(std::move(model));
}

Series growth(const std::vector<FillInRun>& runs, const std::vector<int>& ranks, std::size_t p) {
  Series series;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (p >= runs[i].updates.size()) continue;
    series.name = runs[i].updates[p].first;
    series.x.push_back(ranks[i]);
    series.y.push_back(runs[i].updates[p].second);
  }
  return series;
}

}  // namespace

Findings study_fill_in(const StudyTask& task) {
  Findings out;
  const double density = task.densities.front();
  out.head = {fmt::format("n = {}, density {:g}, {} steps, each anew", task.n, density, task.steps)};
  out.tables = {updates_table(),
                {{"data", "m", "union / k", "g(m)", "union_of / k", "independent"},
                 {},
                 fmt::format("the union of m selections, P = {}", task.ranks.back()),
                 -1}};
  Plot unions{.title = fmt::format("Union of m selections, P = {}", task.ranks.back()),
              .x_label = "m",
              .y_label = "entries / k",
              .log_x = true,
              .log_y = true};
  for (const std::string& data : task.data) {
    std::vector<FillInRun> runs;
    for (const int P : task.ranks) {
      const FillInOptions options{.source = task.source(data), .density = density};
      runs.push_back(on_ranks(task.worlds, P, [&](Communicator& comm) { return measure_fill_in(comm, options); }));
      report_updates(out, runs.back(), data, P);
    }
    report_unions(out, runs.back(), data, task, unions);
    Plot plot{.title = "Update: " + data, .x_label = "P", .y_label = "entries / k", .log_x = true, .log_y = true};
    for (std::size_t p = 0; p < runs.back().updates.size(); ++p) plot.series.push_back(growth(runs, task.ranks, p));
    out.plots.push_back(to_svg(plot));
  }
  out.plots.push_back(to_svg(unions));
  out.notes = {
      "gaussian: independent supports; calm: a common signal and noise; identical: the same "
      "gradient everywhere.",
      "g(m): the observed exponent, union / k = m^g. union_of: the cost model's, as of m^h "
      "independent selections, with the h of m = P. independent: n/k (1 - (1 - k/n)^m).",
      "m selections are those of ranks i, i + P/m, ...: what a block holds in the phases of a "
      "halving reduce-scatter."};
  return out;
}

}  // namespace oktopk
