// SPDX-License-Identifier: Apache-2.0
// What SparseAdam is compared with, and a SparseAdam that is told what arrives.
#pragma once

#include <cmath>
#include <vector>

#include "oktopk/optim/adam.h"
#include "oktopk/optim/reducer.h"
#include "tests/support/optimisers.h"
#include "tests/support/world.h"

namespace oktopk {

// AdamW as it is written in the paper, in float.
struct AdamW {
  explicit AdamW(const AdamOptions& options, std::size_t n) : o(options), m(n), v(n) {}

  void step(Weights& w, const Weights& g, float rate) {
    ++t;
    const auto c1 = static_cast<float>(1 - std::pow(double{o.beta1}, t));
    const auto c2 = static_cast<float>(1 - std::pow(double{o.beta2}, t));
    for (std::size_t i = 0; i < w.size(); ++i) {
      w[i] *= static_cast<float>(1 - double{rate} * o.weight_decay);
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * g[i];
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * (g[i] * g[i]);
      const float m_hat = m[i] / c1;
      const float v_hat = v[i] / c2;
      w[i] -= rate * m_hat / (std::sqrt(v_hat) + o.epsilon);
    }
  }

  AdamOptions o;
  int t = 0;
  Weights m, v;
};

// A single rank that is told what arrives.
template <class Body>
inline void with_adam(Index n, const AdamOptions& options, Body body) {
  run_world("threads", 1, [&](Communicator& comm) {
    Reducer reducer(comm, n, {});
    SparseAdam adam(reducer, options);
    body(adam);
  });
}

}  // namespace oktopk
