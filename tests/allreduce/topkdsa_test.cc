// SPDX-License-Identifier: Apache-2.0
// topkdsa: between 4k(P-1)/P words with equal supports and (2k+n)(P-1)/P when fill-in is complete,
// where the gathered blocks turn dense. topka2a: equal messages in the alltoall, dense blocks in the allgather.
#include <gtest/gtest.h>

#include "oktopk/allreduce/parts/gather.h"
#include "oktopk/codec/frame.h"
#include "tests/support/runs.h"

namespace oktopk::topkdsa_test {
namespace {

// Per peer: the heads of two frames with 64 to 8191 entries, the size of the second, sizes.
constexpr std::uint64_t kFraming = 6 + 6 + 2 + kSizesBytes;

// The mean over the ranks of the bytes sent in a step.
double mean_bytes(const History& run, std::size_t step) {
  double sum = 0;
  for (const auto& rank : run) sum += static_cast<double>(rank[step].traffic.bytes_sent);
  return sum / static_cast<double>(run.size());
}

TEST(Topkdsa, run_on_gaussian_data_stays_within_its_bound) {
  constexpr std::size_t k = 1000;
  for (const int P : {8, 5}) {
    const History run = run_input(P, preset_options("topkdsa", k), 100000, 3, Input::gaussian);
    const double peers = P - 1;
    for (std::size_t step = 1; step < 3; ++step) {
      const auto fill_in = static_cast<double>(run[0][step].outcome.update.size());
      EXPECT_GT(fill_in, 3.0 * k);
      // How many of its entries a rank owns itself varies by chance.
      EXPECT_NEAR(mean_bytes(run, step), peers * kFraming + peers / P * 8 * (k + fill_in), 200);
      for (const auto& rank : run)
        EXPECT_EQ(rank[step].traffic.messages_sent, static_cast<std::uint64_t>(P - 1 + 2 * ceil_log2(P)));
    }
  }
}

TEST(Topkdsa, run_with_equal_supports_moves_4k_words) {
  constexpr std::size_t k = 1000;
  constexpr int P = 8;
  const auto selection = [](int rank, int) {
    SparseVector v;
    for (Index i = 0; i < k; ++i) v.push_back(100 * i, static_cast<float>(rank + 1));
    return v;
  };
  const History run = run_selections(P, "topkdsa", {}, 100000, k, 2, selection);
  const double peers = P - 1;
  EXPECT_NEAR(mean_bytes(run, 1), peers * kFraming + peers / P * 16 * k, 1);
}

TEST(Topkdsa, run_with_complete_fill_in_gathers_dense_blocks) {
  constexpr Index n = 1000;
  constexpr std::size_t k = 500;
  for (const int P : {4, 5}) {
    const auto selection = [](int rank, int step) {
      Random random(3, static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(step));
      return random_sparse(random, k, 0, n);
    };
    const History run = run_selections(P, "topkdsa", {}, n, k, 2, selection);
    const double peers = P - 1;
    const double dense_bound = peers * kFraming + peers / P * (8 * k + 4 * n);
    EXPECT_LE(mean_bytes(run, 1), dense_bound + 8);
    const double sparse = peers / P * 8 * static_cast<double>(run[0][1].outcome.update.size());
    EXPECT_GT(sparse, peers / P * 4 * n);  // what the switch saved
    for (const auto& rank : run) EXPECT_EQ(entries_of(rank[1].outcome.update), oracle_sum(selections_of(run, 1)));
  }
}

TEST(Topka2a, run_with_k_below_P_applies_the_union) {
  const History run = run_input(7, preset_options("topka2a", 3), 100, 8, Input::dyadic);
  for (std::size_t step = 0; step < 8; ++step)
    EXPECT_EQ(entries_of(run[4][step].outcome.update), oracle_sum(selections_of(run, step)));
}

}  // namespace
}  // namespace oktopk::topkdsa_test
