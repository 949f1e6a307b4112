// SPDX-License-Identifier: Apache-2.0
// spardl: 4k(P-1)/P words whatever the fill-in, because every block is pruned before it travels.
#include <gtest/gtest.h>

#include "oktopk/codec/frame.h"
#include "tests/support/runs.h"

namespace oktopk::spardl_test {
namespace {

TEST(Spardl, run_moves_at_most_4k_words_in_2_log_P_messages) {
  for (const std::uint64_t P : {8U, 5U, 7U})
    for (const std::uint64_t k : {1000U, 1003U}) {
      const auto L = static_cast<std::uint64_t>(ceil_log2(static_cast<int>(P)));
      const std::uint64_t quota = (k + P - 1) / P;
      const History run = run_input(static_cast<int>(P), preset_options("spardl", k), 100000, 3, Input::gaussian);
      for (const auto& rank : run)
        for (std::size_t step = 1; step < 3; ++step) {
          const Traffic& t = rank[step].traffic;
          EXPECT_EQ(t.messages_sent, 2 * L);
          EXPECT_LE(t.bytes_sent, (P - 1) * (16 * quota + 2 * frame_head_bytes({}, quota) + 2));
          EXPECT_GE(t.bytes_sent, (P - 1) * 15 * (k / P));
          EXPECT_LE(rank[step].outcome.update.size(), P * quota);
        }
    }
}

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

TEST(Spardl, run_with_indices_beyond_24_bits_and_P_times_n_beyond_31_is_exact) {
  constexpr Index n = 600000000;
  const History run =
      run_selections(5, "spardl", {}, n, 50, 2, [](int rank, int step) { return both_ends(n, rank, step, 50); });
  for (std::size_t step = 0; step < 2; ++step)
    for (const auto& rank : run)
      EXPECT_EQ(entries_of(rank[step].outcome.update), oracle_spardl(selections_of(run, step), n, 50));
  EXPECT_GT(run[0][0].outcome.update.idx.back(), n - 100);
}

}  // namespace
}  // namespace oktopk::spardl_test
