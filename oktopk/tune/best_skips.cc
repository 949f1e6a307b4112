// SPDX-License-Identifier: Apache-2.0
#include "oktopk/tune/best_skips.h"

#include <limits>
#include <vector>

#include "oktopk/allreduce/parts/reduce_scatter.h"
#include "oktopk/base/error.h"

namespace oktopk {

Skips best_skips(const Problem& problem, Codec codec, const Machine& machine) {
  require(problem.P >= 1, "skips: P = ", problem.P, ", but there is at least one rank");
  const auto P = static_cast<std::size_t>(problem.P);
  std::vector<double> best(P + 1, 0.0);
  std::vector<int> next(P + 1, 1);
  for (std::size_t S = 2; S <= P; ++S) {
    const auto held = static_cast<double>(S);
    const Cost block = SparseReduceScatter::predict_block(held, problem, codec, true);
    best[S] = std::numeric_limits<double>::infinity();
    // From large T to small: of equal times, the one with fewer messages.
    for (std::size_t T = S - 1; T >= 1; --T) {
      const std::size_t hops = (S + T - 1) / T - 1;
      const auto messages = static_cast<double>(hops);
      const double blocks = held - static_cast<double>(T);
      const double phase = seconds(concurrent(messages, blocks * block.bytes, held * block.entries), machine);
      if (phase + best[T] >= best[S]) continue;
      best[S] = phase + best[T];
      next[S] = static_cast<int>(T);
    }
  }
  Skips skips = {problem.P};
  while (skips.back() > 1) skips.push_back(next[static_cast<std::size_t>(skips.back())]);
  return skips;
}

}  // namespace oktopk
