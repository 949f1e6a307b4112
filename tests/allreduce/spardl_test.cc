// SPDX-License-Identifier: Apache-2.0
// spardl: 4k(P-1)/P words whatever the fill-in, because every block is pruned before it travels.
#include <gtest/gtest.h>

#include "oktopk/codec/frame.h"
#include "tests/support/runs.h"

namespace oktopk::spardl_test {
namespace {

TEST(Spardl, run_keeps_partial_sums_that_are_pruned_with_their_holder) {
  const History run = run_input(5, preset_options("spardl", 40), 1000, 4, Input::dyadic);
  std::vector<double> brought(1000, 0.0);
  std::vector<double> kept(1000, 0.0);
  for (int rank = 0; rank < 5; ++rank)
    for (std::uint64_t step = 0; step < 4; ++step) {
      const auto gradient = make_input(Input::dyadic, 1000, rank, step, 1);
      for (std::size_t i = 0; i < 1000; ++i) brought[i] += gradient[i];
    }
  std::size_t dropped = 0;
  for (const auto& rank : run) {
    for (const RankStep& step : rank) dropped += step.outcome.dropped.size();
    for (std::size_t i = 0; i < 1000; ++i) kept[i] += rank[3].residual[i];
  }
  for (const RankStep& step : run[0])
    for (const auto& [i, v] : list_of(step.outcome.update)) kept[i] += v;
  EXPECT_GT(dropped, 0u);
  EXPECT_EQ(kept, brought);
}

}  // namespace
}  // namespace oktopk::spardl_test
