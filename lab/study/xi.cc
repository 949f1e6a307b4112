// SPDX-License-Identifier: Apache-2.0
// `oktopk-lab study xi`: Ok-Topk's Assumption 1 (Li & Hoefler, PPoPP'22, Eq. 5) supposes a constant that bounds, in
// every step t,
//   xi_t = || Topk(1/P sum_i (a G_i + e_i)) - Topk(1/P sum_i Topk(a G_i + e_i)) || / || a G_t ||,
// e_i the residuals, a the learning rate, G_t the mean gradient: how much worse it is to select before summing than
// after. All vectors are dense and on one rank, for small n. The study trains by SGD as in the paper's Algorithm 2.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>

#include "lab/study/study.h"
#include "oktopk/base/error.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/reducer_state.h"
#include "tools/statistics.h"

namespace oktopk {
namespace {

using nlohmann::json;

constexpr int kPoints = 50;  // values of xi in a run
constexpr int kSamplesPerRank = 16;
constexpr float kLearningRate = 0.1F;

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

// 1/P (sum of terms + memory).
Dense mean_with(const std::vector<Dense>& terms, const Dense& memory) {
  Dense sum = add_up(terms);
  for (std::size_t i = 0; i < memory.size(); ++i) sum[i] += memory[i];
  for (double& x : sum) x /= static_cast<double>(terms.size());
  return sum;
}

// The state of all ranks before the step that takes `gradient`.
XiState state_before(Communicator& comm, const Reducer& reducer, std::span<const float> gradient) {
  Dense accumulator(state_of(reducer).unsent.values().begin(), state_of(reducer).unsent.values().end());
  Dense scaled(gradient.begin(), gradient.end());
  for (std::size_t i = 0; i < scaled.size(); ++i) accumulator[i] += scaled[i] *= double{kLearningRate};
  Dense memory(reducer.n(), 0.0);
  const OwnerMemory remembered = state_of(reducer).unsent.memory();
  for (std::size_t i = 0; i < remembered.values.size(); ++i)
    if (remembered.values[i] != 0) memory[remembered.index(i)] = remembered.values[i];
  Workspace work;
  allreduce_small(comm, std::span(memory), Reduction::sum, work);
  allreduce_small(comm, std::span(scaled), Reduction::sum, work);
  for (double& x : scaled) x /= comm.size();
  return {.accumulators = gather_dense(comm, accumulator), .memory = memory, .gradient = scaled};
}

// Trains a perceptron; losses are means over the ranks and a tenth of the steps.
json measure_xi(Communicator& comm, const StudyTask& task, const SmallTraining& training,
                const ReducerOptions& options) {
  Network network(training.model, training.problem.features(), training.problem.classes);
  std::vector<float> weights(network.parameters()), gradient(weights.size());
  network.initialise(weights, task.seed);
  Reducer reducer(comm, network.parameters(), only_used(options));
  std::vector<std::uint32_t> samples;
  Batch batch;
  Dense losses, steps, xi, xis_applied;
  for (int step = 0; step < task.steps; ++step) {
    const Batch& all = training.problem.train;
    draw_samples(all.size(), task.seed, static_cast<std::uint64_t>(step),
                 static_cast<std::uint64_t>(kSamplesPerRank * comm.rank()), kSamplesPerRank, samples);
    take_batch(all, samples, batch);
    losses.push_back(network.gradient(weights, batch, gradient));
    const bool looks = step % std::max(1, task.steps / kPoints) == 0;
    XiState state;
    if (looks) state = state_before(comm, reducer, gradient);
    const Update update = reducer.step(gradient, kLearningRate);
    update.subtract_from(weights);
    if (!looks || comm.rank() != 0) continue;
    Dense applied(weights.size(), 0.0);
    update.for_each([&](Index i, float mean) { applied[i] = mean; });
    steps.push_back(step);
    xi.push_back(xi_of(state, reducer.k()));
    xis_applied.push_back(xi_applied(state, applied, reducer.k()));
  }
  const Dense mean = mean_over_ranks(gather_dense(comm, losses));
  const std::size_t tenth = std::max<std::size_t>(1, mean.size() / 10);
  return {{"data", "training"},
          {"ranks", comm.size()},
          {"n", weights.size()},
          {"k", reducer.k()},
          {"density", options.density.value_or(kDefaultDensity)},
          {"steps", steps},
          {"xi", xi},
          {"xi_applied", xis_applied},
          {"first_loss", mean_of(std::span(mean).first(tenth))},
          {"last_loss", mean_of(std::span(mean).last(tenth))}};
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
  const SmallTraining training = small_training(task.n, {.train = 16384, .test = 256, .seed = task.seed});
  for (const int P : task.ranks)
    for (const double density : task.densities) {
      Plot plot{.title = fmt::format("training, P = {}, density {:g}", P, density), .x_label = "step", .y_label = "xi"};
      for (const XiMethod& method : kMethods) {
        ReducerOptions options = method_of(method.preset, density);
        options.allreduce.residual = method.residual;
        json row = on_ranks(task, P, [&](Communicator& comm) { return measure_xi(comm, task, training, options); });
        if (row.is_null()) continue;  // another process has it
        row["method"] = method.name;
        out.rows.push_back(row);
        plot.series.push_back({.name = method.name, .x = row["steps"], .y = row["xi"]});
      }
      out.plots.push_back(plot);
    }
  out.head.push_back(fmt::format("training: {}, {} steps, xi every {}", training.model, task.steps,
                                 std::max(1, task.steps / kPoints)));
  const Column p95{"p95", "xi", [](const json& xi) { return format_fixed(quantile(xi, 0.95), 3); }};
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
