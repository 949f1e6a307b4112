// SPDX-License-Identifier: Apache-2.0
// Ok-Topk's Assumption 1 (Li & Hoefler, PPoPP'22, Eq. 5) supposes a constant that bounds, in every
// step t,
//   xi_t = || Topk(1/P sum_i (a G_i + e_i)) - Topk(1/P sum_i Topk(a G_i + e_i)) || / || a G_t ||,
// e_i the residuals, a the learning rate, G_t the mean gradient: how much worse it is to select
// before summing than after. All dense and in one place, for small n.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "oktopk/reduce/reducer.h"
#include "tests/laws/witness.h"

namespace oktopk {

struct XiState {
  std::vector<Dense> accumulators;  // by rank: a G_i + e_i
  // Owner memory of all ranks, or empty. The paper has none. With it, what was sent and not applied
  // is no longer in any e_i, so m takes part in both sums.
  Dense memory = {};
  Dense gradient = {};  // a G_t, the mean over the ranks
};

Dense top_of(const Dense& x, std::size_t k);  // the rest is zero; ties: smaller index

double xi_of(const XiState& state, std::size_t k);
// The same with what the step really applied (the mean) in place of the second Topk: thresholds
// that are reused or steered select not exactly k.
double xi_applied(const XiState& state, const Dense& applied, std::size_t k);

// One rank's gradient at the given weights; returns its loss, or NaN if there is none.
using TrainingSource = std::function<double(int step, std::span<const float> weights, std::span<float> gradient)>;

struct XiOptions {
  ReducerOptions reducer;
  std::vector<float> weights;  // to start from
  int steps = 200;
  int every = 5;  // steps between two values of xi
  float learning_rate = 0.1F;
};

struct XiRun {
  std::size_t n = 0, k = 0;
  std::vector<double> steps, xi, applied;
  double first_loss = 0, last_loss = 0;  // means over the ranks and a tenth of the steps
};

// Collective. SGD as in the paper's Algorithm 2.
XiRun measure_xi(Communicator& comm, const XiOptions& options, const TrainingSource& source);

}  // namespace oktopk
