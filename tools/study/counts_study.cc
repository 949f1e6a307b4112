// SPDX-License-Identifier: Apache-2.0
// `oktopk study counts`: how near to k the selectors and the updates stay.
#include <fmt/format.h>

#include "tools/report/plot.h"
#include "tools/statistics.h"
#include "tools/study/counts.h"
#include "tools/study/study.h"

namespace oktopk {
namespace {

Series over_steps(const CountRun& run) {
  Series series{.name = run.name};
  for (std::size_t i = 0; i < run.per_step.size(); ++i) {
    series.x.push_back(static_cast<double>(i));
    series.y.push_back(run.per_step[i]);
  }
  return series;
}

void report(Findings& out, const CountRun& run, const std::string& data, int P, double density) {
  const Spread s = spread_of(run.ratios, 1);
  out.tables[run.global ? 1 : 0].rows.push_back({run.name, data, fmt::format("{}", P), fmt::format("{:g}", density),
                                                 fmt::format("{:.3f}", s.mean), fmt::format("{:.3f}", s.p5),
                                                 fmt::format("{:.3f}", s.p95), fmt::format("{:.3f}", s.deviation),
                                                 fmt::format("{:.3f}", s.max)});
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
}

}  // namespace

Findings study_counts(const StudyTask& task) {
  Findings out;
  out.head = {fmt::format("n = {}, {} steps with error feedback; counts / k", task.n, task.steps)};
  const std::vector<std::string> columns = {"data", "P", "density", "mean", "p5", "p95", "|dev|", "max"};
  Table local{.head = columns, .caption = "a rank's selection / k"};
  local.head.insert(local.head.begin(), "selector");
  Table global{.head = columns, .caption = "the update / k"};
  global.head.insert(global.head.begin(), "preset");
  out.tables = {local, global};
  for (const int P : task.ranks)
    for (const double density : task.densities)
      for (const std::string& data : task.data) {
        const CountOptions options{.source = task.source(data), .density = density};
        const auto runs = on_ranks(task.worlds, P, [&](Communicator& comm) { return measure_counts(comm, options); });
        const std::string where = fmt::format("{}, P = {}, density {:g}", data, P, density);
        Plot selections{.title = "selection / k: " + where, .x_label = "step", .y_label = "count / k"};
        Plot updates{.title = "update / k: " + where, .x_label = "step", .y_label = "count / k"};
        for (const CountRun& run : runs) {
          report(out, run, data, P, density);
          (run.global ? updates : selections).series.push_back(over_steps(run));
        }
        out.plots.push_back(to_svg(selections));
        out.plots.push_back(to_svg(updates));
      }
  out.notes = {
      "Selectors run within preset topka, which applies all that is sent; plots show the mean over "
      "the ranks. The tables leave out the first quarter of the steps, in which residuals build "
      "up.",
      "A selection never exceeds 2k: what a threshold lets through beyond that is trimmed.",
      "|dev|: mean of |count / k - 1|."};
  return out;
}

}  // namespace oktopk
