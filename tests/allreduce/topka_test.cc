// SPDX-License-Identifier: Apache-2.0
// topka and gaussiank: the union is applied; the published words grow with P.
#include <gtest/gtest.h>

#include "oktopk/allreduce/parts/gather.h"
#include "tests/support/runs.h"

namespace oktopk::topka_test {
namespace {

TEST(Topka, run_gathers_2k_words_of_every_peer) {
  constexpr std::size_t k = 1000;
  for (const int P : {8, 5}) {
    const auto peers = static_cast<std::uint64_t>(P) - 1;
    const History run = run_input(P, preset_options("topka", k), 100000, 3, Input::gaussian);
    for (const auto& rank : run)
      for (std::size_t step = 1; step < 3; ++step) {
        const Traffic& t = rank[step].traffic;
        EXPECT_EQ(t.bytes_received, peers * (8 * k + 6 + 2));
        EXPECT_EQ(t.bytes_sent, t.bytes_received);
        EXPECT_EQ(t.messages_sent, static_cast<std::uint64_t>(ceil_log2(P)));
      }
  }
}

TEST(Topka, run_applies_the_union_of_the_selections) {
  const History run = run_input(3, preset_options("topka", 50), 1000, 3, Input::dyadic);
  for (std::size_t step = 0; step < 3; ++step)
    EXPECT_EQ(entries_of(run[1][step].outcome.update), oracle_sum(selections_of(run, step)));
}

TEST(Gaussiank, run_exchanges_sizes_first_and_gathers_what_was_selected) {
  constexpr int P = 5;
  const History run = run_input(P, preset_options("gaussiank", 1000), 100000, 3, Input::gaussian);
  for (std::size_t step = 1; step < 3; ++step) {
    std::uint64_t selected = 0;
    for (const auto& rank : run) selected += rank[step].selection.size();
    for (const auto& rank : run) {
      const Traffic& t = rank[step].traffic;
      const std::uint64_t others = selected - rank[step].selection.size();
      EXPECT_EQ(t.bytes_received, 8 * others + (P - 1) * (6 + 2 + kSizesBytes));
      EXPECT_EQ(t.messages_sent, 2u * 3);
    }
  }
}

TEST(Topka, run_with_indices_beyond_24_bits_and_P_times_n_beyond_31_is_exact) {
  constexpr Index n = 600000000;
  for (const char* codec : {"coo32", "elias_fano"}) {
    const History run = run_selections(5, "topka", with_codec(codec), n, 50, 2,
                                       [](int rank, int step) { return both_ends(n, rank, step, 50); });
    for (std::size_t step = 0; step < 2; ++step)
      for (const auto& rank : run)
        EXPECT_EQ(entries_of(rank[step].outcome.update), oracle_sum(selections_of(run, step)));
    EXPECT_GT(run[0][0].outcome.update.idx.back(), n - 100);
  }
}

}  // namespace
}  // namespace oktopk::topka_test
