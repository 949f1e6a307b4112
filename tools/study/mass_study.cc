// SPDX-License-Identifier: Apache-2.0
// `oktopk study mass`: what every preset loses under each of its residual rules, also with lossy
// codecs.
#include <fmt/format.h>

#include <limits>

#include "tools/report/plot.h"
#include "tools/statistics.h"
#include "tools/study/mass.h"
#include "tools/study/study.h"

namespace oktopk {
namespace {

constexpr const char* kCodecs[] = {"coo32+fp32", "coo32+bf16", "coo32+log8", "coo32+log4"};

constexpr double kTiny = 1e-4;  // shares below are rounding, not loss

std::string share_text(double share) { return share == 0 ? "0" : fmt::format("{:.2e}", share); }

struct StudiedMethod {
  std::string preset;
  ResidualKind residual;
};

std::vector<StudiedMethod> methods() {
  std::vector<StudiedMethod> all;
  for (const Preset& preset : presets())
    for (const ResidualKind residual : preset.residuals) all.push_back({std::string(preset.name), residual});
  return all;
}

struct Row {
  StudiedMethod method;
  std::string data;
  int P;
  std::vector<MassRun> runs = {};  // by codec
};

std::vector<ReducerOptions> reducers(const std::vector<StudiedMethod>& all, double density) {
  std::vector<ReducerOptions> options;
  for (const StudiedMethod& method : all)
    for (const char* codec : kCodecs) {
      ReducerOptions o;
      o.preset = method.preset;
      o.density = density;
      o.allreduce.residual = method.residual;
      o.allreduce.codec = parse_codec(codec);
      options.push_back(o);
    }
  return options;
}

std::vector<Row> run_all(const StudyTask& task, const std::string& data, int P) {
  const std::vector<StudiedMethod> all = methods();
  const MassOptions options{reducers(all, task.densities.front()), task.source(data)};
  const auto runs = on_ranks(task.worlds, P, [&](Communicator& comm) { return measure_mass(comm, options); });
  std::vector<Row> rows;
  for (std::size_t m = 0; m * std::size(kCodecs) < runs.size(); ++m) {
    const auto first = runs.begin() + static_cast<std::ptrdiff_t>(m * std::size(kCodecs));
    rows.push_back({all[m], data, P, {first, first + std::ssize(kCodecs)}});
  }
  return rows;
}

void report(Findings& out, const Row& row) {
  const std::string rule(to_string(row.method.residual));
  std::vector<std::string> cells = {row.method.preset, rule, row.data, fmt::format("{}", row.P)};
  for (std::size_t c = 0; c < row.runs.size(); ++c) {
    const MassRun& run = row.runs[c];
    cells.push_back(share_text(run.share()));
    out.rows.push_back({{"preset", row.method.preset},
                        {"residual", rule},
                        {"data", row.data},
                        {"ranks", row.P},
                        {"codec", kCodecs[c]},
                        {"brought", run.brought},
                        {"lost", run.lost},
                        {"share", run.share()},
                        {"per_step", run.per_step},
                        {"total", run.total}});
  }
  cells.push_back(share_text(mean_of(row.runs.front().per_step)));
  out.tables[0].rows.push_back(std::move(cells));
}

// Zero cannot be shown on a logarithmic axis: no bar.
Bars bars_of(const std::vector<Row>& rows, const std::string& title) {
  Bars bars{.title = title, .y_label = "lost / brought"};
  for (const char* codec : kCodecs) bars.sets.push_back({.name = codec});
  for (const Row& row : rows) {
    bars.groups.push_back(row.method.preset + (row.method.residual == ResidualKind::sender_keeps ? ", sender" : ""));
    for (std::size_t c = 0; c < row.runs.size(); ++c) {
      const double share = row.runs[c].share();
      bars.log_y = bars.log_y || (share > 0 && share < kTiny);
      bars.sets[c].values.push_back(share > 0 ? share : std::numeric_limits<double>::quiet_NaN());
    }
  }
  bars.note = "No bar: nothing at all is lost. Shares below 1e-7 are the rounding of float sums.";
  return bars;
}

Plot over_steps(const std::vector<Row>& rows, const std::string& title) {
  Plot plot{.title = title, .x_label = "step", .y_label = "lost so far / brought so far"};
  for (const Row& row : rows) {
    const MassRun& run = row.runs.front();
    if (run.share() < kTiny) continue;
    Series series{.name = row.method.preset + ", " + std::string(to_string(row.method.residual)), .y = run.total};
    for (std::size_t i = 0; i < run.total.size(); ++i) series.x.push_back(static_cast<double>(i));
    plot.series.push_back(std::move(series));
  }
  return plot;
}

}  // namespace

Findings study_mass(const StudyTask& task) {
  Findings out;
  out.head = {fmt::format("n = {}, density {:g}, {} steps with error feedback; 1-norms", task.n, task.densities.front(),
                          task.steps)};
  Table table{.head = {"preset", "residual rule", "data", "P"},
              .caption = "|brought - applied - residuals - memory| / |brought|, by codec"};
  for (const char* codec : kCodecs) table.head.emplace_back(codec);
  table.head.emplace_back("per step");
  out.tables = {table};
  for (const std::string& data : task.data)
    for (const int P : task.ranks) {
      const std::vector<Row> rows = run_all(task, data, P);
      for (const Row& row : rows) report(out, row);
      const std::string where = fmt::format("{}, P = {}", data, P);
      out.plots.push_back(to_svg(bars_of(rows, "Lost mass: " + where)));
      out.plots.push_back(to_svg(over_steps(rows, "Over the steps: " + where)));
    }
  out.notes = {
      "brought: the sum of all gradients over ranks and steps. per step: what one step loses / its "
      "update, mean, first codec.",
      "gtopk with sender_keeps is the published rule of gTopk, which clears entries that the tree "
      "pruned. Everything else keeps what it does not apply, rounding included."};
  return out;
}

}  // namespace oktopk
