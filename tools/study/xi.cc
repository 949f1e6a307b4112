// SPDX-License-Identifier: Apache-2.0
// `oktopk study xi`: Ok-Topk's Assumption 1 (Li & Hoefler, PPoPP'22, Eq. 5) supposes a constant that bounds, in every
// step t,
//   xi_t = || Topk(1/P sum_i (a G_i + e_i)) - Topk(1/P sum_i Topk(a G_i + e_i)) || / || a G_t ||,
// e_i the residuals, a the learning rate, G_t the mean gradient: how much worse it is to select before summing than
// after. All vectors are dense and on one rank, for small n. The study trains by SGD as in the paper's Algorithm 2.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>

#include "oktopk/base/error.h"
#include "oktopk/reduce/reducer.h"
#include "tools/statistics.h"
#include "tools/study/study.h"
#include "tools/study/training.h"

namespace oktopk {
namespace {

constexpr int kPoints = 50;  // values of xi in a run
constexpr int kSamplesPerRank = 16;
constexpr float kLearningRate = 0.1F;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

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

// One rank's gradient at the given weights; returns its loss, or NaN if there is none.
using TrainingSource = std::function<double(int step, std::span<const float> weights, std::span<float> gradient)>;

struct XiRun {
  std::size_t n = 0, k = 0;
  Dense steps, xi, applied;
  double first_loss = 0, last_loss = 0;  // means over the ranks and a tenth of the steps
};

// 1/P (sum of terms + memory).
Dense mean_with(const std::vector<Dense>& terms, const Dense& memory) {
  Dense sum = add_up(terms);
  for (std::size_t i = 0; i < memory.size(); ++i) sum[i] += memory[i];
  for (double& x : sum) x /= static_cast<double>(terms.size());
  return sum;
}

// The state of all ranks before the step that takes `gradient`.
XiState state_before(Communicator& comm, const Reducer& reducer, std::span<const float> gradient) {
  Dense accumulator(reducer.residual().begin(), reducer.residual().end());
  Dense scaled(gradient.begin(), gradient.end());
  for (std::size_t i = 0; i < scaled.size(); ++i) accumulator[i] += scaled[i] *= double{kLearningRate};
  Dense memory(reducer.n(), 0.0);
  std::ranges::copy(reducer.memory().values, memory.begin() + reducer.memory().region.begin);
  Workspace work;
  allreduce_small(comm, std::span(memory), Reduction::sum, work);
  allreduce_small(comm, std::span(scaled), Reduction::sum, work);
  for (double& x : scaled) x /= comm.size();
  return {.accumulators = gather_dense(comm, accumulator), .memory = memory, .gradient = scaled};
}

XiRun measure_xi(Communicator& comm, const ReducerOptions& options, int steps, std::vector<float> weights,
                 const TrainingSource& source) {
  std::vector<float> gradient(weights.size());
  Reducer reducer(comm, static_cast<Index>(weights.size()), options);
  XiRun run{.n = weights.size(), .k = reducer.k()};
  Dense losses;
  for (int step = 0; step < steps; ++step) {
    losses.push_back(source(step, weights, gradient));
    const bool looks = step % std::max(1, steps / kPoints) == 0;
    XiState state;
    if (looks) state = state_before(comm, reducer, gradient);
    const Update update = reducer.step(gradient, kLearningRate);
    update.subtract_from(weights);
    if (!looks || comm.rank() != 0) continue;
    Dense applied(weights.size(), 0.0);
    update.for_each([&](Index i, float mean) { applied[i] = mean; });
    run.steps.push_back(step);
    run.xi.push_back(xi_of(state, reducer.k()));
    run.applied.push_back(xi_applied(state, applied, reducer.k()));
  }
  const Dense mean = mean_over_ranks(gather_dense(comm, losses));
  const std::size_t tenth = std::max<std::size_t>(1, mean.size() / 10);
  run.first_loss = mean_of(std::span(mean).first(tenth));
  run.last_loss = mean_of(std::span(mean).last(tenth));
  return run;
}

// Gradients of a perceptron (data "training"), or of a stream, which has neither weights nor a loss.
XiRun run_method(const StudyTask& task, const SmallTraining* training, const std::string& data, int P,
                 const ReducerOptions& options) {
  return on_ranks(task, P, [&](Communicator& comm) {
    if (training == nullptr) {
      const Source source = make_source(task.source(data), comm.rank());
      std::vector<float> out;
      return measure_xi(comm, options, task.steps, std::vector<float>(task.n, 0.0F),
                        [&](int step, std::span<const float> /*weights*/, std::span<float> gradient) {
                          source(step, out);
                          std::ranges::copy(out, gradient.begin());
                          return kNone;
                        });
    }
    Network network(training->model, training->problem.features(), training->problem.classes);
    std::vector<float> weights(network.parameters());
    network.initialise(weights, task.seed);
    std::vector<std::uint32_t> samples;
    Batch batch;
    return measure_xi(
        comm, options, task.steps, weights, [&](int step, std::span<const float> now, std::span<float> gradient) {
          const Batch& all = training->problem.train;
          draw_samples(all.size(), task.seed, static_cast<std::uint64_t>(step), comm.rank(), kSamplesPerRank, samples);
          take_batch(all, samples, batch);
          return network.gradient(now, batch, gradient);
        });
  });
}

}  // namespace

Dense top_of(const Dense& x, std::size_t k) {
  std::vector<std::size_t> order(x.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  k = std::min(k, order.size());
  std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k), order.end(),
                   [&](std::size_t a, std::size_t b) {
                     const double left = std::fabs(x[a]), right = std::fabs(x[b]);
                     return left != right ? left > right : a < b;
                   });
  Dense top(x.size(), 0.0);
  for (std::size_t j = 0; j < k; ++j) top[order[j]] = x[order[j]];
  return top;
}

double xi_of(const XiState& state, std::size_t k) {
  std::vector<Dense> selected;
  for (const Dense& accumulator : state.accumulators) selected.push_back(top_of(accumulator, k));
  return xi_applied(state, top_of(mean_with(selected, state.memory), k), k);
}

double xi_applied(const XiState& state, const Dense& applied, std::size_t k) {
  Dense difference = top_of(mean_with(state.accumulators, state.memory), k);
  for (std::size_t i = 0; i < difference.size(); ++i) difference[i] -= applied[i];
  const double distance = norm2(difference);
  if (distance == 0) return 0;
  const double size = norm2(state.gradient);
  return size > 0 ? distance / size : std::numeric_limits<double>::infinity();
}

Findings study_xi(const StudyTask& task) {
  Findings out;
  for (const std::string& data : task.data) {
    std::optional<SmallTraining> training;
    if (data == "training") training = small_training(task.n, {.train = 16384, .test = 256, .seed = task.seed});
    for (const int P : task.ranks)
      for (const double density : task.densities) {
        Plot plot{
            .title = fmt::format("{}, P = {}, density {:g}", data, P, density), .x_label = "step", .y_label = "xi"};
        for (const XiMethod& method : kMethods) {
          ReducerOptions options = method_of(method.preset, density);
          options.allreduce.residual = method.residual;
          const XiRun run = run_method(task, training ? &*training : nullptr, data, P, options);
          nlohmann::json row = {{"method", method.name},
                                {"data", data},
                                {"ranks", P},
                                {"n", run.n},
                                {"k", run.k},
                                {"density", density},
                                {"steps", run.steps},
                                {"xi", run.xi},
                                {"xi_applied", run.applied}};
          if (training) row.update({{"first_loss", run.first_loss}, {"last_loss", run.last_loss}});
          out.rows.push_back(row);
          plot.series.push_back({.name = method.name, .x = run.steps, .y = run.xi});
        }
        out.plots.push_back(plot);
      }
    out.head.push_back(fmt::format("{}: n = {}{}, {} steps, xi every {}", data, out.rows.back()["n"].get<std::size_t>(),
                                   training ? " (" + training->model + ")" : "", task.steps,
                                   std::max(1, task.steps / kPoints)));
  }
  const Column p95{"p95", "xi", [](const nlohmann::json& xi) { return format_fixed(quantile(xi, 0.95), 3); }};
  out.tables = {make_table("xi over the run",
                           {{"method", "method"},
                            {"data", "data"},
                            {"P", "ranks"},
                            {"density", "density"},
                            {"xi mean", "xi", mean(3)},
                            p95,
                            {"max", "xi", largest(3)},
                            {"applied mean", "xi_applied", mean(3)},
                            {"max", "xi_applied", largest(3)},
                            {"first loss", "first_loss", fixed(3)},
                            {"last loss", "last_loss", fixed(3)}},
                           out.rows)};
  out.notes = {
      "xi = |Topk(mean of accumulators) - Topk(mean of their Topk)| / |learning rate * mean gradient| (Li & Hoefler, "
      "PPoPP'22, Eq. 5), exact Topk throughout.",
      "applied: the same with the update that was really applied in place of the second Topk.",
      "The paper's condition is about sender_keeps. With owner_memory the owners' memory takes part in both sums: the "
      "same quantity of another method, not the paper's assumption."};
  return out;
}

}  // namespace oktopk
