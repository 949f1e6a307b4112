// SPDX-License-Identifier: Apache-2.0
// `oktopk study counts`: how many entries selectors and updates let through, as multiples of k, with error feedback.
// Every selector runs within the preset topka, which applies all that is sent, so that the selector alone makes the
// difference.
#include <fmt/format.h>

#include <memory>

#include "oktopk/reduce/reducer.h"
#include "tools/statistics.h"
#include "tools/study/study.h"

namespace oktopk {
namespace {

struct CountRun {
  std::string name;
  bool global = false;           // the size of the update, or of a rank's selection
  std::vector<double> ratios;    // of all ranks; without the first quarter of the steps
  std::vector<double> per_step;  // mean over the ranks, from the first step on
};

std::vector<CountRun> measure_counts(Communicator& comm, const SourceOptions& data, double density) {
  std::vector<CountRun> runs;
  std::vector<std::unique_ptr<Reducer>> reducers;
  const auto add = [&](std::string_view name, bool global, const ReducerOptions& options) {
    runs.push_back({.name = std::string(name), .global = global});
    reducers.push_back(std::make_unique<Reducer>(comm, data.n, options));
  };
  for (const SelectorInfo& selector : selectors()) {
    ReducerOptions options = method_of("topka", density);
    options.selector = std::string(selector.name);
    add(selector.name, false, options);
  }
  for (const char* preset : {"oktopk", "circulant"}) add(preset, true, method_of(preset, density));
  std::vector<Dense> counts(runs.size());
  const Source source = make_source(data, comm.rank());
  std::vector<float> gradient;
  for (int step = 0; step < data.steps; ++step) {
    source(step, gradient);
    for (std::size_t r = 0; r < runs.size(); ++r) {
      Reducer& reducer = *reducers[r];
      reducer.step(gradient);
      const std::size_t count = runs[r].global ? reducer.outcome().update.size() : reducer.sent().size();
      counts[r].push_back(static_cast<double>(count) / static_cast<double>(reducer.k()));
    }
  }
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const auto by_rank = gather_dense(comm, counts[r]);
    runs[r].per_step = mean_over_ranks(by_rank);
    // The update is the same on all ranks.
    for (const Dense& rank : std::span(by_rank).first(runs[r].global ? 1 : by_rank.size()))
      runs[r].ratios.insert(runs[r].ratios.end(), rank.begin() + std::ssize(rank) / 4, rank.end());
  }
  return runs;
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
        for (const CountRun& run :
             on_ranks(task, P, [&](Communicator& c) { return measure_counts(c, task.source(data), density); })) {
          const Spread s = spread_of(run.ratios, 1);
          out.rows.push_back({{run.global ? "preset" : "selector", run.name},
                              {"data", data},
                              {"ranks", P},
                              {"density", density},
                              {"mean", s.mean},
                              {"p5", s.p5},
                              {"p95", s.p95},
                              {"mean_deviation", s.deviation},
                              {"max", s.max},
                              {"per_step", run.per_step}});
          (run.global ? updates : selections).series.push_back(over_steps(run.name, run.per_step));
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
