// SPDX-License-Identifier: Apache-2.0
// `oktopk-lab study mass`: how much an algorithm and its residual rule lose: accumulators + owner memory before a step,
// minus update + residuals + owner memory after it, index by index, in 1-norms. Law 3 (docs/laws.md) says that this is
// zero; here it is measured, also for rules and codecs that break the law.
#include <fmt/format.h>

#include <limits>
#include <memory>

#include "lab/study/study.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/reducer_state.h"
#include "tools/statistics.h"

namespace oktopk {
namespace {

using nlohmann::json;

constexpr const char* kCodecs[] = {"coo32+fp32", "coo32+bf16", "coo32+log8", "coo32+log4"};
constexpr double kTiny = 1e-4;  // smaller shares are rounding, not loss

std::vector<ReducerOptions> studied_methods(double density) {
  std::vector<ReducerOptions> all;
  for (const Preset& preset : presets())
    for (const ResidualKind residual : preset.residuals)
      for (const char* codec : kCodecs) {
        ReducerOptions options = method_of(preset.name, density);
        options.allreduce.residual = residual;
        options.allreduce.codec = parse_codec(codec);
        all.push_back(options);
      }
  return all;
}

// The mass that this rank holds and that is not applied yet.
Dense unsent(const Reducer& reducer) {
  Dense held(state_of(reducer).unsent.values().begin(), state_of(reducer).unsent.values().end());
  const OwnerMemory memory = state_of(reducer).unsent.memory();
  for (std::size_t i = 0; i < memory.values.size(); ++i)
    if (memory.values[i] != 0) held[memory.index(i)] += memory.values[i];
  return held;
}

template <class Values>
void add(Dense& a, const Values& b, double factor = 1) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += factor * b[i];
}

Dense sum_over_ranks(Communicator& comm, Dense mine) {
  Workspace work;
  allreduce_small(comm, std::span(mine), Reduction::sum, work);
  return mine;
}

Dense update_of(const Reducer& reducer) {
  const Outcome& outcome = state_of(reducer).outcome;
  if (state_of(reducer).allreduce->is_dense()) return {outcome.dense_update.begin(), outcome.dense_update.end()};
  Dense update(reducer.n(), 0.0);
  for (std::size_t j = 0; j < outcome.update.size(); ++j) update[outcome.update.idx[j]] = outcome.update.val[j];
  return update;
}

class MassRun {
 public:
  MassRun(Communicator& comm, Index n, const ReducerOptions& options)
      : comm_(comm), options_(options), reducer_(comm, n, only_used(options)), lost_(n, 0.0) {}

  // `brought`: | sum of all gradients so far |.
  void step(std::span<const float> gradient, double brought) {
    Dense balance = unsent(reducer_);
    reducer_.step(gradient);
    add(balance, gradient);
    add(balance, unsent(reducer_), -1);
    Dense gone = sum_over_ranks(comm_, std::move(balance));
    const Dense update = update_of(reducer_);
    add(gone, update, -1);
    add(lost_, gone);
    brought_ = brought;
    const double applied = norm1(update);
    per_step_.push_back(applied > 0 ? norm1(gone) / applied : 0);
    total_.push_back(brought > 0 ? norm1(lost_) / brought : 0);
  }

  json row() const {
    return {{"preset", options_.preset},
            {"residual", to_string(options_.allreduce.residual)},
            {"ranks", comm_.size()},
            {"codec", to_string(options_.allreduce.codec.value_or(Codec{}))},
            {"brought", brought_},
            {"lost", norm1(lost_)},
            {"share", total_.back()},
            {"per_step", per_step_},
            {"total", total_}};
  }

 private:
  Communicator& comm_;
  ReducerOptions options_;
  Reducer reducer_;
  Dense lost_;  // brought - applied - residuals - memory, by index
  double brought_ = 0;
  Dense per_step_;  // | lost in the step | / | its update |
  Dense total_;     // | lost so far | / | brought so far |
};

// A row for each preset, rule and codec, all with the same gradients.
json measure_mass(Communicator& comm, const StudyTask& task, const std::string& data) {
  std::vector<std::unique_ptr<MassRun>> runs;
  for (const ReducerOptions& options : studied_methods(task.densities.front()))
    runs.push_back(std::make_unique<MassRun>(comm, task.n, options));
  Dense brought(task.n, 0.0);
  task.for_each_gradient(data, comm.rank(), [&](std::span<const float> gradient) {
    add(brought, sum_over_ranks(comm, {gradient.begin(), gradient.end()}));
    for (const auto& run : runs) run->step(gradient, norm1(brought));
  });
  json rows = json::array();
  for (const auto& run : runs) {
    rows.push_back(run->row());
    rows.back()["data"] = data;
  }
  return rows;
}

std::string share_text(double share) { return share == 0 ? "0" : fmt::format("{:.2e}", share); }

// Adds the rows of one preset and rule, a codec each, to the table and to the plots.
void report(std::span<const json> rows, Table& table, Bars& bars, Plot& plot) {
  const std::string preset = rows[0]["preset"], rule = rows[0]["residual"];
  std::vector<std::string> cells = {preset, rule, rows[0]["data"], rows[0]["ranks"].dump()};
  bars.groups.push_back(preset + (rule == "sender_keeps" ? ", sender" : ""));
  for (std::size_t c = 0; c < rows.size(); ++c) {
    const double share = rows[c]["share"];
    cells.push_back(share_text(share));
    bars.log_y = bars.log_y || (share > 0 && share < kTiny);
    bars.sets[c].values.push_back(share > 0 ? share : std::numeric_limits<double>::quiet_NaN());
  }
  cells.push_back(share_text(mean_of(rows[0]["per_step"].get<Dense>())));
  table.rows.push_back(cells);
  if (rows[0]["share"] >= kTiny) plot.series.push_back(over_steps(preset + ", " + rule, rows[0]["total"]));
}

}  // namespace

Findings study_mass(const StudyTask& task) {
  Findings out;
  out.head = {fmt::format("n = {}, density {:g}, {} steps with error feedback; 1-norms", task.n, task.densities.front(),
                          task.steps)};
  out.tables = {{.head = {"preset", "residual rule", "data", "P"},
                 .caption = "|brought - applied - residuals - memory| / |brought|, by codec"}};
  for (const char* codec : kCodecs) out.tables[0].head.emplace_back(codec);
  out.tables[0].head.emplace_back("per step");
  for (const std::string& data : task.data)
    for (const int P : task.ranks) {
      const json found = on_ranks(task, P, [&](Communicator& comm) { return measure_mass(comm, task, data); });
      const std::vector<json> rows(found.begin(), found.end());
      Bars bars{.title = fmt::format("Lost mass: {}, P = {}", data, P), .y_label = "lost / brought"};
      Plot plot{.title = fmt::format("Over the steps: {}, P = {}", data, P),
                .x_label = "step",
                .y_label = "lost so far / brought so far"};
      for (const char* codec : kCodecs) bars.sets.push_back({.name = codec});
      for (std::size_t m = 0; m < rows.size(); m += std::size(kCodecs))
        report(std::span(rows).subspan(m, std::size(kCodecs)), out.tables[0], bars, plot);
      bars.note = "No bar: nothing at all is lost. Shares below 1e-7 are the rounding of float sums.";
      out.plots.insert(out.plots.end(), {bars, plot});
      for (const json& row : rows) out.rows.push_back(row);
    }
  out.notes = {
      "brought: the sum of all gradients over ranks and steps. per step: mass that one step loses / its update, mean, "
      "first codec.",
      "gtopk with sender_keeps is the published rule of gTopk, which clears entries that the tree pruned. Everything "
      "else keeps what it does not apply, rounding included."};
  return out;
}

}  // namespace oktopk
