// SPDX-License-Identifier: Apache-2.0
// gtopk: the tree's words on the root's path, and what its nodes prune.
#include <gtest/gtest.h>

#include "oktopk/codec/frame.h"
#include "tests/support/runs.h"

namespace oktopk::gtopk_test {
namespace {

TEST(Gtopk, run_moves_4k_log_P_words_through_the_root) {
  constexpr std::size_t k = 1000;
  for (const int P : {8, 5}) {
    const auto rounds = 2 * static_cast<std::uint64_t>(ceil_log2(P));
    const History run = run_input(P, preset_options("gtopk", k), 100000, 3, Input::gaussian);
    for (std::size_t step = 1; step < 3; ++step) {
      EXPECT_EQ(run[0][step].traffic.duplex_bytes, rounds * (8 * k + frame_head_bytes({}, k))) << P;
      EXPECT_EQ(run[0][step].traffic.duplex_messages, rounds);
      for (const auto& rank : run) {
        EXPECT_LE(rank[step].traffic.duplex_bytes, run[0][step].traffic.duplex_bytes);
        EXPECT_EQ(rank[step].outcome.update.size(), k);
      }
    }
  }
}

TEST(Gtopk, run_prunes_at_every_node_and_says_what) {
  // Ranks 0 and 1 merge to {0: 3, 1: 5}, ranks 2 and 3 to {0: -4, 2: 6}, k = 2.
  const SparseVector brought[] = {make_sparse({{0, 3}, {3, 1}}), make_sparse({{1, 5}}), make_sparse({{0, -4}, {3, 1}}),
                                  make_sparse({{2, 6}})};
  const History run =
      run_selections(4, "gtopk", {}, 10, 2, 1, [&](int rank, int) { return brought[static_cast<std::size_t>(rank)]; });
  for (const auto& rank : run) EXPECT_EQ(list_of(rank[0].outcome.update), (EntryList{{1, 5}, {2, 6}}));
  EXPECT_EQ(list_of(run[0][0].outcome.dropped), (EntryList{{0, -1}, {3, 1}}));
  EXPECT_TRUE(run[1][0].outcome.dropped.empty());
  EXPECT_EQ(list_of(run[2][0].outcome.dropped), (EntryList{{3, 1}}));
  EXPECT_TRUE(run[3][0].outcome.dropped.empty());
}

TEST(Gtopk, run_with_more_than_k_selected_prunes_before_it_sends) {
  const History run = run_selections(2, "gtopk", {}, 10, 1, 1, [&](int rank, int) {
    return rank == 0 ? make_sparse({{0, 3}, {3, 1}}) : make_sparse({{3, 2}, {5, 1}});
  });
  EXPECT_EQ(list_of(run[1][0].outcome.update), (EntryList{{0, 3}}));
  EXPECT_EQ(list_of(run[0][0].outcome.dropped), (EntryList{{3, 3}}));
  EXPECT_EQ(list_of(run[1][0].outcome.dropped), (EntryList{{5, 1}}));
}

}  // namespace
}  // namespace oktopk::gtopk_test
