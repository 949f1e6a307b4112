// SPDX-License-Identifier: Apache-2.0
// One of each kind of optimiser for tests that hold for all of them, and training on threads.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "oktopk/base/state.h"
#include "oktopk/optim/optimiser.h"
#include "oktopk/reduce/reducer.h"
#include "tests/support/world.h"

namespace oktopk {

using Weights = std::vector<float>;

struct OptimiserKind {
  std::string name;
  std::function<std::unique_ptr<Optimiser>(Synchroniser&)> make;
};

inline OptimiserKind kind_of(const std::string& name, const SgdOptions& options) {
  return {name, [options](Synchroniser& sync) { return std::make_unique<SparseSGD>(sync, options); }};
}
inline OptimiserKind kind_of(const std::string& name, const AdamOptions& options) {
  return {name, [options](Synchroniser& sync) { return std::make_unique<SparseAdamW>(sync, options); }};
}

inline std::vector<OptimiserKind> optimiser_kinds() {
  constexpr float kRate = 0.05F;
  constexpr auto kUpdates = Sparsify::updates;
  const SgdOptions sgd{.learning_rate = 0.2F};
  const SgdOptions momentum{.learning_rate = kRate, .momentum = 0.8F};
  SgdOptions published_momentum = momentum;
  published_momentum.interval_aware = false;
  const SgdOptions nesterov{
      .learning_rate = kRate, .momentum = 0.8F, .nesterov = true, .weight_decay = 1e-3F, .clip_norm = 20};
  const SgdOptions local{.learning_rate = kRate, .momentum = 0.8F, .sparsify = kUpdates};
  const SgdOptions dgc{.learning_rate = kRate,
                       .momentum = 0.8F,
                       .nesterov = true,
                       .weight_decay = 1e-3F,
                       .clip_norm = 20,
                       .sparsify = kUpdates,
                       .factor_masking = true,
                       .look_ahead = true};
  const AdamOptions interval{.learning_rate = kRate, .beta2 = 0.99F, .weight_decay = 1e-2F};
  AdamOptions published = interval;
  published.clip_norm = 20;
  published.mode = AdamMode::published;
  AdamOptions local_adam = interval;
  local_adam.sparsify = kUpdates;
  local_adam.look_ahead = true;
  return {kind_of("sgd", sgd),
          kind_of("sgd_momentum", momentum),
          kind_of("sgd_momentum_published", published_momentum),
          kind_of("sgd_nesterov_decay_clip", nesterov),
          kind_of("sgd_updates", local),
          kind_of("sgd_dgc", dgc),
          kind_of("adam_interval_aware", interval),
          kind_of("adam_published", published),
          kind_of("adam_updates", local_adam)};
}

// From a saved state, after the options and the learning rate: the steps that Adam made, the momentum of SGD.
inline std::uint32_t saved_steps(const SparseAdamW& adam) {
  const Bytes bytes = adam.save();
  StateReader state(bytes);
  state.take_text();
  state.take<float>();
  return state.take<std::uint32_t>();
}
inline Weights saved_momentum(const SparseSGD& sgd) {
  const Bytes bytes = sgd.save();
  StateReader state(bytes);
  state.take_text();
  state.take<float>();
  return state.take_all<float>();
}

// Multiples of 1/8 in [-1, 1).
inline Weights first_weights(std::size_t n) {
  Weights weights(n);
  for (std::size_t i = 0; i < n; ++i) weights[i] = static_cast<float>((i * 7) % 16) / 8 - 1;
  return weights;
}

struct Training {
  int P = 3;
  Index n = 0;
  int steps = 0;
  ReducerOptions reducer = {};
};
using Gradients = std::function<Weights(int rank, int step)>;

// The ranks' weights after training from first_weights().
inline std::vector<Weights> train(const Training& training, const OptimiserKind& kind, const Gradients& gradients) {
  return gather_world("threads", training.P, [&](Communicator& comm) {
    Reducer reducer(comm, training.n, training.reducer);
    const auto optimiser = kind.make(reducer);
    Weights weights = first_weights(training.n);
    for (int step = 0; step < training.steps; ++step) optimiser->step(weights, gradients(comm.rank(), step));
    return weights;
  });
}

inline double distance(const Weights& a, const Weights& b) {
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return std::sqrt(squares);
}

}  // namespace oktopk
