// SPDX-License-Identifier: Apache-2.0
// `oktopk-lab study counts`: how many entries selectors and updates let through, as multiples of k, with error
// feedback. Every selector runs within the preset topka, which applies all that is sent, so that the selector alone
// makes the difference.
#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "lab/study/study.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/reducer_state.h"
#include "tools/statistics.h"

namespace oktopk {
namespace {

using nlohmann::json;

struct CountRun {
  std::string kind, name;  // selector: counts a rank's selection; preset: counts the update
  std::unique_ptr<Reducer> reducer;
  Dense ratios = {};  // count / k, by step

  void step(std::span<const float> gradient) {
    reducer->step(gradient);
    const std::size_t count = kind == "preset" ? state_of(*reducer).outcome.update.size() : reducer->sent().size();
    ratios.push_back(static_cast<double>(count) / static_cast<double>(reducer->k()));
  }

  // Collective. The summary leaves out the first quarter of the steps, in which residuals build up.
  json row(Communicator& comm) const {
    const auto by_rank = gather_dense(comm, ratios);
    Dense settled, off;
    for (const Dense& rank : std::span(by_rank).first(kind == "preset" ? 1 : by_rank.size()))  // an update is common
      settled.insert(settled.end(), rank.begin() + std::ssize(rank) / 4, rank.end());
    for (const double ratio : settled) off.push_back(std::fabs(ratio - 1));
    return {{kind, name},
            {"mean", mean_of(settled)},
            {"p5", quantile(settled, 0.05)},
            {"p95", quantile(settled, 0.95)},
            {"mean_deviation", mean_of(off)},
            {"max", max_of(settled)},
            {"per_step", mean_over_ranks(by_rank)}};
  }
};

json measure_counts(Communicator& comm, const StudyTask& task, const std::string& data, double density) {
  std::vector<CountRun> runs;
  const auto add = [&](const char* kind, std::string_view name, const ReducerOptions& options) {
    runs.push_back({kind, std::string(name), std::make_unique<Reducer>(comm, task.n, only_used(options))});
  };
  for (const SelectorInfo& selector : selectors()) {
    ReducerOptions options = method_of("topka", density);
    options.selector = std::string(selector.name);
    add("selector", selector.name, options);
  }
  for (const char* preset : {"oktopk", "circulant"}) add("preset", preset, method_of(preset, density));
  task.for_each_gradient(data, comm.rank(), [&](std::span<const float> gradient) {
    for (CountRun& run : runs) run.step(gradient);
  });
  json rows = json::array();
  for (const CountRun& run : runs) {
    rows.push_back(run.row(comm));
    rows.back().update({{"data", data}, {"ranks", comm.size()}, {"density", density}});
  }
  return rows;
}

std::vector<Column> count_columns(const std::string& name) {
  return {{name, name},
          {"data", "data"},
          {"P", "ranks"},
          {"density", "density"},
          {"mean", "mean", fixed(3)},
          {"p5", "p5", fixed(3)},
          {"p95", "p95", fixed(3)},
          {"|dev|", "mean_deviation", fixed(3)},
          {"max", "max", fixed(3)}};
}

}  // namespace

Findings study_counts(const StudyTask& task) {
  Findings out;
  out.head = {fmt::format("n = {}, {} steps with error feedback; counts / k", task.n, task.steps)};
  for (const int P : task.ranks)
    for (const double density : task.densities)
      for (const std::string& data : task.data) {
        const std::string where = fmt::format("{}, P = {}, density {:g}", data, P, density);
        Plot selections{.title = "selection / k: " + where, .x_label = "step", .y_label = "count / k"};
        Plot updates{.title = "update / k: " + where, .x_label = "step", .y_label = "count / k"};
        for (const json& row :
             on_ranks(task, P, [&](Communicator& c) { return measure_counts(c, task, data, density); })) {
          const char* kind = row.contains("preset") ? "preset" : "selector";
          out.rows.push_back(row);
          (row.contains("preset") ? updates : selections).series.push_back(over_steps(row[kind], row["per_step"]));
        }
        out.plots.insert(out.plots.end(), {selections, updates});
      }
  out.tables = {make_table("a rank's selection / k", count_columns("selector"), out.rows, "selector"),
                make_table("the update / k", count_columns("preset"), out.rows, "preset")};
  out.notes = {
      "Selectors run within preset topka, which applies all that is sent; plots show the mean over the ranks. The "
      "tables leave out the first quarter of the steps, in which residuals build up.",
      "A selection never exceeds 2k: entries above the threshold beyond 2k are trimmed.",
      "|dev|: mean of |count / k - 1|."};
  return out;
}

}  // namespace oktopk
