// SPDX-License-Identifier: Apache-2.0
// What SparseAdamW is compared with, and a SparseAdamW that is told what arrives.
#pragma once

#include <cmath>
#include <vector>

#include "oktopk/optim/adam_rule.h"
#include "oktopk/optim/optimiser.h"
#include "oktopk/reduce/reducer.h"
#include "tests/support/optimisers.h"
#include "tests/support/world.h"

namespace oktopk {

// AdamW in float, with the roundings of torch.optim.AdamW.
struct AdamW {
  explicit AdamW(const AdamOptions& options, std::size_t n) : o(options), m(n), v(n) {}

  void step(Weights& w, const Weights& g, float rate) {
    ++t;
    const auto fresh1 = static_cast<float>(1 - double{o.beta1});
    const auto fresh2 = static_cast<float>(1 - double{o.beta2});
    const auto root = static_cast<float>(std::sqrt(1 - std::pow(double{o.beta2}, t)));
    const auto move = static_cast<float>(-double{rate} / (1 - std::pow(double{o.beta1}, t)));
    for (std::size_t i = 0; i < w.size(); ++i) {
      w[i] *= static_cast<float>(1 - double{rate} * o.weight_decay);
      m[i] = std::fma(fresh1, g[i] - m[i], m[i]);
      v[i] = std::fma(fresh2 * g[i], g[i], o.beta2 * v[i]);
      w[i] += move * m[i] / (std::sqrt(v[i]) / root + o.epsilon);
    }
  }

  AdamOptions o;
  int t = 0;
  Weights m, v;
};

// The constants of a step of AdamW, with their clock. The caller ticks it.
struct AdamClock {
  AdamStep step(double beta1, double beta2) {
    return {.beta1 = beta1,
            .beta2 = beta2,
            .epsilon = 1e-8F,
            .clock = clock.view(),
            .first = first.up_to(beta1, clock.now()),
            .second = second.up_to(beta2, clock.now())};
  }

  IntervalClock clock;
  PowerTable first, second;
};

// A single rank that is told what arrives.
template <class Body>
inline void with_adam(Index n, const AdamOptions& options, Body body) {
  run_world("threads", 1, [&](Communicator& comm) {
    Reducer reducer(comm, n, {});
    SparseAdamW adam(reducer, options);
    body(adam);
  });
}

}  // namespace oktopk
