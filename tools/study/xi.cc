// SPDX-License-Identifier: Apache-2.0
#include "tools/study/xi.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tools/statistics.h"

namespace oktopk {
namespace {

// 1/P (sum of terms + memory).
Dense mean_with(const std::vector<Dense>& terms, const Dense& memory) {
  Dense sum = add_up(terms);
  for (std::size_t i = 0; i < memory.size(); ++i) sum[i] += memory[i];
  for (double& x : sum) x /= static_cast<double>(terms.size());
  return sum;
}

double gap(const XiState& state, const Dense& second, std::size_t k) {
  Dense difference = top_of(mean_with(state.accumulators, state.memory), k);
  for (std::size_t i = 0; i < difference.size(); ++i) difference[i] -= second[i];
  const double distance = norm2(difference);
  if (distance == 0) return 0;
  const double size = norm2(state.gradient);
  return size > 0 ? distance / size : std::numeric_limits<double>::infinity();
}

// What all ranks have before the step that takes `gradient`.
XiState state_before(Communicator& comm, const Reducer& reducer, std::span<const float> gradient, float learning_rate) {
  Dense accumulator(reducer.residual().begin(), reducer.residual().end());
  Dense scaled(gradient.begin(), gradient.end());
  for (std::size_t i = 0; i < scaled.size(); ++i) accumulator[i] += scaled[i] *= double{learning_rate};
  Dense memory(reducer.n(), 0.0);
  std::ranges::copy(reducer.memory().values, memory.begin() + reducer.memory().region.begin);
  Workspace work;
  allreduce_small(comm, std::span(memory), Reduction::sum, work);
  allreduce_small(comm, std::span(scaled), Reduction::sum, work);
  for (double& x : scaled) x /= comm.size();
  return {.accumulators = gather_dense(comm, accumulator), .memory = memory, .gradient = scaled};
}

}  // namespace

Dense top_of(const Dense& x, std::size_t k) {
  std::vector<std::size_t> order(x.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  k = std::min(k, order.size());
  std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k), order.end(),
                   [&](std::size_t a, std::size_t b) {
                     const double left = std::fabs(x[a]);
                     const double right = std::fabs(x[b]);
                     return left != right ? left > right : a < b;
                   });
  Dense top(x.size(), 0.0);
  for (std::size_t j = 0; j < k; ++j) top[order[j]] = x[order[j]];
  return top;
}

double xi_of(const XiState& state, std::size_t k) {
  std::vector<Dense> selected;
  for (const Dense& accumulator : state.accumulators) selected.push_back(top_of(accumulator, k));
  return gap(state, top_of(mean_with(selected, state.memory), k), k);
}

double xi_applied(const XiState& state, const Dense& applied, std::size_t k) { return gap(state, applied, k); }

XiRun measure_xi(Communicator& comm, const XiOptions& options, const TrainingSource& source) {
  std::vector<float> weights = options.weights;
  std::vector<float> gradient(weights.size());
  Reducer reducer(comm, static_cast<Index>(weights.size()), options.reducer);
  XiRun run{.n = weights.size(), .k = reducer.k()};
  Dense losses;
  for (int step = 0; step < options.steps; ++step) {
    losses.push_back(source(step, weights, gradient));
    const bool looks = step % options.every == 0;
    XiState state;
    if (looks) state = state_before(comm, reducer, gradient, options.learning_rate);
    const Update update = reducer.step(gradient, options.learning_rate);
    update.subtract_from(weights);
    if (!looks || comm.rank() != 0) continue;
    Dense applied(weights.size(), 0.0);
    update.for_each([&](Index i, float mean) { applied[i] = mean; });
    run.steps.push_back(step);
    run.xi.push_back(xi_of(state, reducer.k()));
    run.applied.push_back(xi_applied(state, applied, reducer.k()));
  }
  const auto by_rank = gather_dense(comm, losses);
  const Dense mean = mean_over_ranks(by_rank);
  const std::size_t tenth = std::max<std::size_t>(1, mean.size() / 10);
  run.first_loss = mean_of(std::span(mean).first(std::min(tenth, mean.size())));
  run.last_loss = mean_of(std::span(mean).last(std::min(tenth, mean.size())));
  return run;
}

}  // namespace oktopk
