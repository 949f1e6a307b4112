// SPDX-License-Identifier: Apache-2.0
// Four ranks as threads of this process minimise a quadratic together, each step moving 1% of the
// gradient. Everything a training loop needs: a Reducer, a gradient, an update to apply.
#include <cmath>
#include <cstdio>
#include <vector>

#include "oktopk/oktopk.h"

int main() {
  constexpr oktopk::Index n = 100'000;
  constexpr int ranks = 4;
  oktopk::run_threads(ranks, [](oktopk::Communicator& comm) {
    oktopk::Reducer reducer(comm, n, {.preset = "circulant", .density = 0.01});
    std::vector<float> weights(n, 1.0F);  // the minimum is at 0
    std::vector<float> gradient(n);
    for (int step = 0; step <= 1000; ++step) {
      double loss = 0;
      for (oktopk::Index i = 0; i < n; ++i) {
        gradient[i] = weights[i] * (1 + 0.1F * static_cast<float>(comm.rank()));
        loss += weights[i] * weights[i] / n;
      }
      if (comm.rank() == 0 && step % 200 == 0) std::printf("step %4d  loss %.4f\n", step, loss);
      const float learning_rate = 0.02F;
      reducer.step(gradient, learning_rate).subtract_from(weights);
    }
  });
}
