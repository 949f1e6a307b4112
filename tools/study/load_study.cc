// SPDX-License-Identifier: Apache-2.0
// `oktopk study load`: how even the regions and the shares are, with and without re-cutting and
// balancing.
#include <fmt/format.h>

#include <limits>

#include "oktopk/base/error.h"
#include "tools/report/plot.h"
#include "tools/statistics.h"
#include "tools/study/load.h"
#include "tools/study/study.h"

namespace oktopk {
namespace {

constexpr double kNeverBalance = 1e9;
constexpr int kTau = 16;

struct Case {
  const char* name;
  const char* preset;
  bool recuts;     // oktopk: repartition every kTau steps, or once
  double trigger;  // oktopk: of balancing
};
constexpr Case kCases[] = {
    {"topkdsa: equal regions", "topkdsa", false, kNeverBalance},
    {"oktopk: one vote", "oktopk", false, kNeverBalance},
    {"oktopk: one vote, balance", "oktopk", false, 4},
    {"oktopk: tau = 16", "oktopk", true, kNeverBalance},
    {"oktopk: tau = 16, balance", "oktopk", true, 4},
    {"oktopk: tau = 16, balance at 1.2", "oktopk", true, 1.2},
    {"circulant: recut on demand", "circulant", true, kNeverBalance},
};

std::vector<ReducerOptions> reducers(double density) {
  std::vector<ReducerOptions> all;
  for (const Case& c : kCases) {
    ReducerOptions options;
    options.preset = c.preset;
    options.density = density;
    options.allreduce.tau = c.recuts ? kTau : std::numeric_limits<int>::max();
    options.allreduce.balance_trigger = c.trigger;
    all.push_back(options);
  }
  return all;
}

void report(Findings& out, const LoadRun& run, const Case& c, const std::string& data, int P) {
  out.tables[0].rows.push_back({c.name, data, fmt::format("{}", P), fmt::format("{:.2f}", mean_of(run.split)),
                                fmt::format("{:.2f}", max_of(run.split)), fmt::format("{:.2f}", mean_of(run.share)),
                                fmt::format("{:.2f}", max_of(run.share)), fmt::format("{:.2f}", mean_of(run.total)),
                                fmt::format("{:.2f}", mean_of(run.dealt)), fmt::format("{:.2f}", run.bytes / 1024),
                                fmt::format("{:.0f}%", 100 * run.balanced)});
  out.rows.push_back({{"case", c.name},
                      {"preset", c.preset},
                      {"data", data},
                      {"ranks", P},
                      {"split", run.split},
                      {"share", run.share},
                      {"total", run.total},
                      {"dealt", run.dealt},
                      {"bytes", run.bytes},
                      {"balanced", run.balanced}});
}

// One bar per case and data: either the split's or the shares' imbalance.
Bars bars_of(const std::string& title, const std::vector<std::string>& data) {
  Bars bars{.title = title, .y_label = "largest / mean"};
  for (const std::string& name : data) bars.groups.push_back(name);
  for (const Case& c : kCases) bars.sets.push_back({.name = c.name});
  bars.reference = 1;
  bars.reference_label = "even";
  return bars;
}

Plot over_steps(const std::vector<LoadRun>& runs, const std::string& title) {
  Plot plot{.title = title, .x_label = "step", .y_label = "largest / mean"};
  for (std::size_t c = 0; c < runs.size(); ++c) {
    if (kCases[c].trigger != kNeverBalance) continue;  // balancing does not change the split
    Series series{.name = kCases[c].name, .y = runs[c].split};
    for (std::size_t i = 0; i < series.y.size(); ++i) series.x.push_back(static_cast<double>(i));
    plot.series.push_back(std::move(series));
  }
  return plot;
}

}  // namespace

Findings study_load(const StudyTask& task) {
  for (const int P : task.ranks) require(P >= 4, "--ranks ", P, ": the phases can be told apart only from 4 ranks on");
  Findings out;
  out.head = {fmt::format("n = {}, density {:g}, {} steps; largest / mean over the ranks", task.n,
                          task.densities.front(), task.steps)};
  out.tables.push_back(
      {{"case", "data", "P", "split mean", "max", "share mean", "max", "total mean", "tiles", "KiB/rank", "balanced"},
       {},
       "bytes per rank, largest / mean",
       -1});
  for (const int P : task.ranks) {
    Bars split = bars_of(fmt::format("Split: received by owners, P = {}", P), task.data);
    Bars share = bars_of(fmt::format("Gather: the owners' shares, P = {}", P), task.data);
    for (const std::string& data : task.data) {
      const LoadOptions options{reducers(task.densities.front()), task.source(data)};
      const auto runs = on_ranks(task.worlds, P, [&](Communicator& comm) { return measure_load(comm, options); });
      for (std::size_t c = 0; c < runs.size(); ++c) {
        report(out, runs[c], kCases[c], data, P);
        split.sets[c].values.push_back(mean_of(runs[c].split));
        share.sets[c].values.push_back(mean_of(runs[c].share));
      }
      out.plots.push_back(to_svg(over_steps(runs, fmt::format("Split over the steps: {}, P = {}", data, P))));
    }
    out.plots.push_back(to_svg(split));
    out.plots.push_back(to_svg(share));
  }
  out.notes = {
      "tiles: entries per owner if tiles of 256 indices were dealt round to the ranks instead of "
      "regions; an owner's own entries count.",
      "split: received in the one exchange with P - 1 messages; an owner's own entries cross no "
      "wire and are not in it. share: sent in the first round of the gather, after balancing; only "
      "of steps that evaluate nothing. Frame headers are included in both.",
      "total: all that a rank receives. balanced: part of those steps in which oktopk balanced.",
      "Selections are exact everywhere; circulant runs with direct skips."};
  return out;
}

}  // namespace oktopk
