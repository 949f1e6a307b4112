// SPDX-License-Identifier: Apache-2.0
// `oktopk study mass`: how much an algorithm and its residual rule lose: accumulators + owner memory before a step,
// minus update + residuals + owner memory after it, index by index, in 1-norms. Law 3 (docs/laws.md) says that this is
// zero; here it is measured, also for rules and codecs that break the law.
#include <fmt/format.h>

#include <limits>
#include <memory>

#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/reducer_state.h"
#include "tools/statistics.h"
#include "tools/study/study.h"

namespace oktopk {
namespace {

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
  for (std::size_t i = 0; i < memory.values.size(); ++i) held[memory.region.begin + i] += memory.values[i];
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

struct MassRun {
  double brought = 0;            // | sum of all gradients |
  double lost = 0;               // | brought - applied - residuals - memory | at the end
  std::vector<double> per_step;  // | lost in the step | / | its update |
  std::vector<double> total;     // | lost so far | / | brought so far |

  double share() const { return brought > 0 ? lost / brought : 0; }
};

class MassRunner {
 public:
  MassRunner(Communicator& comm, Index n, const ReducerOptions& options)
      : comm_(comm), reducer_(comm, n, only_used(options)), lost_(n, 0.0) {}

  void step(std::span<const float> gradient, double brought) {
    Dense balance = unsent(reducer_);
    reducer_.step(gradient);
    add(balance, gradient);
    add(balance, unsent(reducer_), -1);
    Dense gone = sum_over_ranks(comm_, std::move(balance));
    const Dense update = update_of(reducer_);
    add(gone, update, -1);
    add(lost_, gone);
    run.brought = brought;
    run.lost = norm1(lost_);
    const double applied = norm1(update);
    run.per_step.push_back(applied > 0 ? norm1(gone) / applied : 0);
    run.total.push_back(run.share());
  }

  MassRun run;

 private:
  Communicator& comm_;
  Reducer reducer_;
  Dense lost_;
};

// One run for each method, all with the same gradients.
std::vector<MassRun> measure_mass(Communicator& comm, const SourceOptions& data,
                                  const std::vector<ReducerOptions>& methods) {
  std::vector<std::unique_ptr<MassRunner>> runners;
  for (const ReducerOptions& options : methods) runners.push_back(std::make_unique<MassRunner>(comm, data.n, options));
  const Source source = make_source(data, comm.rank());
  Dense brought(data.n, 0.0);
  std::vector<float> gradient;
  for (int step = 0; step < data.steps; ++step) {
    source(step, gradient);
    add(brought, sum_over_ranks(comm, {gradient.begin(), gradient.end()}));
    for (const auto& runner : runners) runner->step(gradient, norm1(brought));
  }
  std::vector<MassRun> runs;
  for (const auto& runner : runners) runs.push_back(std::move(runner->run));
  return runs;
}

std::string share_text(double share) { return share == 0 ? "0" : fmt::format("{:.2e}", share); }

// Adds the four rows of one preset and rule, by codec, to everything.
void report(Findings& out, std::span<const MassRun> runs, const ReducerOptions& method, const std::string& data,
            int P) {
  const std::string rule(to_string(method.allreduce.residual));
  std::vector<std::string> cells = {method.preset, rule, data, fmt::format("{}", P)};
  for (std::size_t c = 0; c < runs.size(); ++c) {
    const MassRun& run = runs[c];
    cells.push_back(share_text(run.share()));
    out.rows.push_back({{"preset", method.preset},
                        {"residual", rule},
                        {"data", data},
                        {"ranks", P},
                        {"codec", kCodecs[c]},
                        {"brought", run.brought},
                        {"lost", run.lost},
                        {"share", run.share()},
                        {"per_step", run.per_step},
                        {"total", run.total}});
  }
  cells.push_back(share_text(mean_of(runs.front().per_step)));
  out.tables[0].rows.push_back(std::move(cells));
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
  const auto methods = studied_methods(task.densities.front());
  for (const std::string& data : task.data)
    for (const int P : task.ranks) {
      const auto runs = on_ranks(task, P, [&](Communicator& c) { return measure_mass(c, task.source(data), methods); });
      Bars bars{.title = fmt::format("Lost mass: {}, P = {}", data, P), .y_label = "lost / brought"};
      Plot plot{.title = fmt::format("Over the steps: {}, P = {}", data, P),
                .x_label = "step",
                .y_label = "lost so far / brought so far"};
      for (const char* codec : kCodecs) bars.sets.push_back({.name = codec});
      for (std::size_t m = 0; m < runs.size(); m += std::size(kCodecs)) {
        const std::string rule(to_string(methods[m].allreduce.residual));
        report(out, std::span(runs).subspan(m, std::size(kCodecs)), methods[m], data, P);
        bars.groups.push_back(methods[m].preset + (rule == "sender_keeps" ? ", sender" : ""));
        for (std::size_t c = 0; c < std::size(kCodecs); ++c) {
          const double share = runs[m + c].share();
          bars.log_y = bars.log_y || (share > 0 && share < kTiny);
          bars.sets[c].values.push_back(share > 0 ? share : std::numeric_limits<double>::quiet_NaN());
        }
        if (runs[m].share() >= kTiny) plot.series.push_back(over_steps(methods[m].preset + ", " + rule, runs[m].total));
      }
      bars.note = "No bar: nothing at all is lost. Shares below 1e-7 are the rounding of float sums.";
      out.plots.insert(out.plots.end(), {bars, plot});
    }
  out.notes = {
      "brought: the sum of all gradients over ranks and steps. per step: mass that one step loses / its update, mean, "
      "first codec.",
      "gtopk with sender_keeps is the published rule of gTopk, which clears entries that the tree pruned. Everything "
      "else keeps what it does not apply, rounding included."};
  return out;
}

}  // namespace oktopk
