// SPDX-License-Identifier: Apache-2.0
// `oktopk study xi`: Assumption 1 of Ok-Topk, measured in training.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "tools/report/plot.h"
#include "tools/statistics.h"
#include "tools/study/study.h"
#include "tools/study/training.h"
#include "tools/study/xi.h"

namespace oktopk {
namespace {

constexpr int kPoints = 50;  // values of xi in a run

struct XiMethod {
  const char* name;
  const char* preset;
  ResidualKind residual;
};
constexpr XiMethod kMethods[] = {
    {"oktopk", "oktopk", ResidualKind::sender_keeps},
    {"circulant, sender_keeps", "circulant", ResidualKind::sender_keeps},
    {"circulant, owner_memory", "circulant", ResidualKind::owner_memory},
};

// A generated stream, which has neither weights nor a loss.
TrainingSource without_weights(const Source& source) {
  return [source, out = std::vector<float>()](int step, std::span<const float>, std::span<float> gradient) mutable {
    source(step, out);
    std::ranges::copy(out, gradient.begin());
    return std::numeric_limits<double>::quiet_NaN();
  };
}

XiRun run_one(const StudyTask& task, const Training* training, const std::string& data, int P, XiOptions options) {
  if (training != nullptr) {
    options.weights = training->weights();
    return on_ranks(task.worlds, P,
                    [&](Communicator& comm) { return measure_xi(comm, options, training->source(comm.rank())); });
  }
  options.weights.assign(task.n, 0.0F);
  return on_ranks(task.worlds, P, [&](Communicator& comm) {
    return measure_xi(comm, options, without_weights(make_source(task.source(data), comm.rank())));
  });
}

void report(Findings& out, const XiRun& run, const XiMethod& method, const std::string& data, double density, int P) {
  const auto loss = [](double x) { return std::isnan(x) ? "-" : fmt::format("{:.3f}", x); };
  out.tables[0].rows.push_back({method.name, data, fmt::format("{}", P), fmt::format("{:g}", density),
                                fmt::format("{:.3f}", mean_of(run.xi)), fmt::format("{:.3f}", quantile(run.xi, 0.95)),
                                fmt::format("{:.3f}", max_of(run.xi)), fmt::format("{:.3f}", mean_of(run.applied)),
                                fmt::format("{:.3f}", max_of(run.applied)), loss(run.first_loss), loss(run.last_loss)});
  nlohmann::json row = {{"method", method.name},
                        {"data", data},
                        {"ranks", P},
                        {"n", run.n},
                        {"k", run.k},
                        {"density", density},
                        {"steps", run.steps},
                        {"xi", run.xi},
                        {"xi_applied", run.applied}};
  if (!std::isnan(run.first_loss)) {
    row["first_loss"] = run.first_loss;
    row["last_loss"] = run.last_loss;
  }
  out.rows.push_back(std::move(row));
}

}  // namespace

Findings study_xi(const StudyTask& task) {
  Findings out;
  out.tables.push_back(
      {{"method", "data", "P", "density", "xi mean", "p95", "max", "applied mean", "max", "first loss", "last loss"},
       {},
       "xi over the run",
       -1});
  for (const std::string& data : task.data) {
    std::unique_ptr<Training> training;
    if (data == "training") training = std::make_unique<Training>(task.n, task.seed);
    std::size_t n = task.n;
    if (training) n = training->weights().size();
    out.head.push_back(fmt::format("{}: n = {}{}, {} steps, xi every {}", data, n,
                                   training ? " (" + training->network() + ")" : "", task.steps,
                                   std::max(1, task.steps / kPoints)));
    for (const int P : task.ranks)
      for (const double density : task.densities) {
        Plot plot{
            .title = fmt::format("{}, P = {}, density {:g}", data, P, density), .x_label = "step", .y_label = "xi"};
        for (const XiMethod& method : kMethods) {
          XiOptions options{.steps = task.steps, .every = std::max(1, task.steps / kPoints)};
          options.reducer.preset = method.preset;
          options.reducer.density = density;
          options.reducer.allreduce.residual = method.residual;
          const XiRun run = run_one(task, training.get(), data, P, options);
          report(out, run, method, data, density, P);
          plot.series.push_back({.name = method.name, .x = run.steps, .y = run.xi});
        }
        out.plots.push_back(to_svg(plot));
      }
  }
  out.notes = {
      "xi = |Topk(mean of accumulators) - Topk(mean of their Topk)| / |learning rate * mean "
      "gradient| (Li & Hoefler, PPoPP'22, Eq. 5), exact Topk throughout.",
      "applied: the same with the update that was really applied in place of the second Topk.",
      "The paper's condition is about sender_keeps. With owner_memory the owners' memory takes "
      "part in both sums: the same quantity of another method, not the paper's assumption."};
  return out;
}

}  // namespace oktopk
