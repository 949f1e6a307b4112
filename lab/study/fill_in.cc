// SPDX-License-Identifier: Apache-2.0
// `oktopk-lab study fill-in`: how the number of non-zeros grows when selections are added up. Every step starts anew
// (no error feedback), with each preset's own selector.
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <set>

#include "lab/study/study.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/reducer_state.h"
#include "oktopk/tune/cost.h"
#include "tools/statistics.h"

namespace oktopk {
namespace {

using nlohmann::json;

// g with per_k = m^g.
double exponent_of(const UnionSize& u) { return u.m > 1 && u.per_k > 0 ? std::log(u.per_k) / std::log(u.m) : 0; }

std::vector<std::vector<Index>> gather_indices(Communicator& comm, CooView mine) {
  std::vector<std::vector<Index>> all;
  for (const Entries& entries : gather_entries(comm, mine)) {
    all.emplace_back();
    for (const auto& [index, value] : entries) all.back().push_back(index);
  }
  return all;
}

// Means over the steps: the entries of each preset's update, and the unions of m = 1, 2, 4, ... and P selections.
json measure_fill_in(Communicator& comm, const StudyTask& task, const std::string& data, double density) {
  std::vector<std::unique_ptr<Reducer>> reducers;  // the first is topka, whose selector is exact
  for (const Preset& preset : presets())
    if (preset.name != "dense")
      reducers.push_back(std::make_unique<Reducer>(comm, task.n, only_used(method_of(preset.name, density))));
  const std::size_t k = reducers.front()->k();
  Dense entries(reducers.size(), 0.0);
  std::vector<UnionSize> unions;
  task.for_each_gradient(data, comm.rank(), [&](std::span<const float> gradient) {
    for (std::size_t r = 0; r < reducers.size(); ++r) {
      reducers[r]->forget();
      reducers[r]->step(gradient);
      entries[r] += static_cast<double>(state_of(*reducers[r]).outcome.update.size());
    }
    const auto now = union_sizes(gather_indices(comm, reducers.front()->sent()), k);
    unions.resize(now.size(), {.per_k = 0});
    for (std::size_t j = 0; j < now.size(); ++j) unions[j] = {now[j].m, unions[j].per_k + now[j].per_k / task.steps};
  });
  json row = {{"data", data}, {"ranks", comm.size()}, {"k", k}};
  for (std::size_t r = 0; r < reducers.size(); ++r) {
    const std::string name(state_of(*reducers[r]).allreduce->name());
    row["update_per_k"][name] = entries[r] / task.steps / static_cast<double>(k);
  }
  for (const UnionSize& u : unions)
    row["unions"].push_back({{"m", u.m}, {"per_k", u.per_k}, {"exponent", exponent_of(u)}});
  return row;
}

// Beside the cost model's union_of with the exponent that fits at m = P.
void report_unions(const json& row, const std::string& data, Index n, Table& table, Plot& plot) {
  Problem problem{.n = static_cast<double>(n), .k = row["k"], .P = row["unions"].back()["m"]};
  problem.union_exponent = problem.exponent_of(problem.k * row["unions"].back()["per_k"].get<double>());
  Line observed{.name = data, .colour = static_cast<int>(plot.series.size() / 2)};
  Line model{.name = data + ", union_of", .dashed = true, .colour = observed.colour};
  for (const json& u : row["unions"]) {
    const int m = u["m"];
    const double modelled = problem.union_of(m) / problem.k;
    table.rows.push_back({data, std::to_string(m), format_fixed(u["per_k"], 3),
                          m == 1 ? "-" : format_fixed(u["exponent"], 3), format_fixed(modelled, 3),
                          format_fixed(independent_union(problem.n, problem.k, m), 3)});
    observed.x.push_back(m);
    observed.y.push_back(u["per_k"]);
    model.y.push_back(modelled);
  }
  model.x = observed.x;
  plot.series.insert(plot.series.end(), {observed, model});
}

}  // namespace

double independent_union(double n, double k, int m) { return n / k * (1 - std::pow(1 - k / n, m)); }

std::vector<UnionSize> union_sizes(const std::vector<std::vector<Index>>& selections, std::size_t k) {
  const auto P = selections.size();
  std::vector<UnionSize> sizes;
  for (std::size_t m = 1;; m = std::min(2 * m, P)) {
    double total = 0;
    for (std::size_t i = 0; i < P; ++i) {
      std::set<Index> together;
      for (std::size_t j = 0; j < m; ++j) {
        const auto& mine = selections[(i + j * P / m) % P];
        together.insert(mine.begin(), mine.end());
      }
      total += static_cast<double>(together.size());
    }
    sizes.push_back({static_cast<int>(m), total / static_cast<double>(P * k)});
    if (m == P) return sizes;
  }
}

Findings study_fill_in(const StudyTask& task) {
  Findings out;
  const double density = task.densities.front();
  out.head = {fmt::format("n = {}, density {:g}, {} steps, each anew", task.n, density, task.steps)};
  Table unions{.head = {"data", "m", "union / k", "g(m)", "union_of / k", "independent"},
               .caption = fmt::format("the union of m selections, P = {}", task.ranks.back())};
  Plot growth{.title = fmt::format("Union of m selections, P = {}", task.ranks.back()),
              .x_label = "m",
              .y_label = "entries / k",
              .log_x = true,
              .log_y = true};
  for (const std::string& data : task.data) {
    Plot plot{.title = "Update: " + data, .x_label = "P", .y_label = "entries / k", .log_x = true, .log_y = true};
    for (const int P : task.ranks) {
      const json row = on_ranks(task, P, [&](Communicator& c) { return measure_fill_in(c, task, data, density); });
      if (row.is_null()) continue;  // another process has it
      out.rows.push_back(row);
      plot.series.resize(row["update_per_k"].size());
      std::size_t p = 0;
      for (const auto& [preset, per_k] : row["update_per_k"].items()) {
        plot.series[p].name = preset;
        plot.series[p].x.push_back(P);
        plot.series[p++].y.push_back(per_k);
      }
      if (P == task.ranks.back()) report_unions(row, data, task.n, unions, growth);
    }
    out.plots.push_back(plot);
  }
  out.plots.push_back(growth);
  std::vector<Column> columns = {{"data", "data"}, {"P", "ranks"}};
  for (const Preset& preset : presets())
    if (preset.name != "dense")
      columns.push_back(
          {std::string(preset.name), "update_per_k",
           [name = std::string(preset.name)](const json& per_k) { return format_fixed(per_k.value(name, 0.0), 2); }});
  out.tables = {make_table("entries of the update / k", columns, out.rows), unions};
  out.notes = {
      "gaussian: independent supports; calm: a common signal and noise; identical: the same gradient everywhere.",
      "g(m): the observed exponent, union / k = m^g. union_of: the cost model's, as of m^h independent selections, "
      "with "
      "the h of m = P. independent: n/k (1 - (1 - k/n)^m).",
      "m selections are those of ranks i, i + P/m, ...: the selections that meet in a block in the phases of a halving "
      "reduce-scatter."};
  return out;
}

}  // namespace oktopk
