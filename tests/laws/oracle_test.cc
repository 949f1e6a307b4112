// SPDX-License-Identifier: Apache-2.0
// The oracle on cases small enough to compute by hand.
#include "oktopk/laws/truth.h"

#include <gtest/gtest.h>

namespace oktopk::oracle_test {
namespace {

TEST(Oracle, sum_adds_by_index_and_leaves_zeros_out) {
  const std::vector<Entries> ranks = {{{1, 2}, {3, 4}}, {{1, -2}, {2, 5}}, {{3, 1}}};
  EXPECT_EQ(oracle_sum(ranks), (Entries{{2, 5}, {3, 5}}));
  EXPECT_EQ(oracle_sum({}), Entries{});
}

TEST(Oracle, sum_rounds_to_float_after_each_addition) {
  const std::vector<Entries> ranks = {{{0, 16777216}}, {{0, 1}}, {{0, 1}}};
  EXPECT_EQ(oracle_sum(ranks), (Entries{{0, 16777216}}));
}

TEST(Oracle, top_takes_larger_magnitudes_then_smaller_indices) {
  const Entries x = {{0, 1}, {1, -3}, {2, 2}, {5, -2}, {9, 2}};
  EXPECT_EQ(oracle_top(x, 1), (Entries{{1, -3}}));
  EXPECT_EQ(oracle_top(x, 3), (Entries{{1, -3}, {2, 2}, {5, -2}}));
  EXPECT_EQ(oracle_top(x, 99), x);
  EXPECT_EQ(oracle_top(x, 0), Entries{});
}

TEST(Oracle, at_least_includes_the_threshold) {
  const Entries x = {{0, 1}, {1, -3}, {2, 2}};
  EXPECT_EQ(oracle_at_least(x, 2), (Entries{{1, -3}, {2, 2}}));
  EXPECT_EQ(oracle_at_least(x, 0), x);
}

TEST(Oracle, kth_counts_from_the_largest) {
  const Entries x = {{0, 1}, {1, -3}, {2, 2}};
  EXPECT_EQ(oracle_kth(x, 1), 3);
  EXPECT_EQ(oracle_kth(x, 3), 1);
  EXPECT_EQ(oracle_kth(x, 10), 1);
  EXPECT_EQ(oracle_kth({}, 1), 0);
}

TEST(Oracle, gtopk_prunes_at_every_node_of_the_tree) {
  // Index 0 sums to 6 and is the largest of all, but neither half of the tree keeps it.
  const std::vector<Entries> four = {{{0, 2}}, {{1, 3}}, {{2, 5}}, {{0, 4}}};
  EXPECT_EQ(oracle_gtopk(four, 1), (Entries{{2, 5}}));
  EXPECT_EQ(oracle_gtopk(four, 4), (Entries{{0, 6}, {1, 3}, {2, 5}}));
  const std::vector<Entries> three = {{{0, 2}}, {{0, 2}}, {{1, 3}}};
  EXPECT_EQ(oracle_gtopk(three, 1), (Entries{{0, 4}}));
  EXPECT_EQ(oracle_gtopk(std::vector<Entries>{{{0, 2}, {1, 3}}}, 1), (Entries{{1, 3}}));
}

TEST(Oracle, spardl_prunes_each_block_before_it_is_sent_and_at_the_end) {
  // Two ranks, regions [0, 2) and [2, 4), quota 1. Rank 1 sends only the larger of its two entries
  // for region 0, so index 0 stays without it.
  const std::vector<Entries> two = {{{0, 2}, {3, 1}}, {{0, 4}, {1, 5}, {3, 1}}};
  EXPECT_EQ(oracle_spardl(two, 4, 2), (Entries{{1, 5}, {3, 2}}));
  EXPECT_EQ(oracle_spardl(two, 4, 4), (Entries{{0, 6}, {1, 5}, {3, 2}}));
  EXPECT_EQ(oracle_spardl(std::vector<Entries>{{{0, 2}, {3, 1}}}, 4, 1), (Entries{{0, 2}}));
}

TEST(Oracle, spardl_with_room_for_all_is_the_sum_for_any_number_of_ranks) {
  for (std::size_t P = 1; P <= 12; ++P) {
    std::vector<Entries> ranks;
    for (std::size_t r = 0; r < P; ++r)
      ranks.push_back({{static_cast<Index>(r), 1}, {static_cast<Index>(3 * r + 1), 2}, {40, 1}});
    EXPECT_EQ(oracle_spardl(ranks, 50, 50 * P), oracle_sum(ranks)) << P;
  }
}

}  // namespace
}  // namespace oktopk::oracle_test
