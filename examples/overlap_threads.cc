// SPDX-License-Identifier: Apache-2.0
// The problem of sum_threads.cc as a model of six tensors: each is synchronised while the backward
// pass still computes those before it. begin, ready after each tensor, wait, apply.
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "oktopk/oktopk.h"

int main() {
  oktopk::run_threads(4, [](oktopk::Communicator& comm) {
    const std::vector<oktopk::Index> tensors = {1000, 3000, 50, 4000, 50, 1900};
    oktopk::BucketedReducer reducer(comm, tensors, {.preset = "circulant", .density = 0.05},
                                    {.policy = oktopk::FusionPolicy::size, .values = 1500});
    std::vector<float> weights(reducer.n(), 1.0F);  // the minimum is at 0
    std::vector<float> gradient(reducer.n());
    for (int step = 0; step <= 80; ++step) {
      const float learning_rate = 0.05F;
      reducer.begin(gradient, learning_rate);
      double loss = 0;
      std::size_t end = gradient.size();
      for (std::size_t t = tensors.size(); t-- > 0;) {
        const std::size_t begin = end - tensors[t];
        for (std::size_t i = begin; i < end; ++i) {
          gradient[i] = weights[i] * (1 + 0.1F * static_cast<float>(comm.rank()));
          loss += weights[i] * weights[i] / static_cast<float>(gradient.size());
        }
        std::this_thread::sleep_for(std::chrono::microseconds(500));  // as if it were work
        reducer.ready(t);
        end = begin;
      }
      const std::size_t overlapped = reducer.exchanged();
      reducer.wait().subtract_from(weights);
      if (comm.rank() == 0 && step % 20 == 0)
        std::printf("step %2d  loss %.4f  %zu of %zu buckets exchanged before the pass ended\n", step, loss, overlapped,
                    reducer.buckets().size());
    }
  });
}
