// SPDX-License-Identifier: Apache-2.0
// dense: both schedules give the sum of everything at 2n(P-1)/P words.
#include <gtest/gtest.h>

#include "tests/support/runs.h"

namespace oktopk {
namespace {

ReducerOptions dense_options(DenseSchedule schedule) {
  ReducerOptions options = preset_options("dense", 1);
  options.allreduce.dense = schedule;
  return options;
}

TEST(Dense, run_any_schedule_and_length_gives_the_sum) {
  for (const DenseSchedule schedule :
       {DenseSchedule::automatic, DenseSchedule::rabenseifner, DenseSchedule::ring})
    for (const int P : {1, 2, 3, 5, 8})
      for (const Index n : {1U, 2U, 7U, 1000U}) {
        const History run = run_input(P, dense_options(schedule), n, 2, Input::dyadic);
        for (std::uint64_t step = 0; step < 2; ++step) {
          Uninitialised<float> expected(n, 0.0F);
          for (int rank = 0; rank < P; ++rank) {
            const auto gradient = make_input(Input::dyadic, n, rank, step, 1);
            for (Index i = 0; i < n; ++i) expected[i] += gradient[i];
          }
          for (const auto& rank : run) {
            EXPECT_EQ(rank[step].outcome.dense_update, expected);
            EXPECT_TRUE(rank[step].outcome.update.empty());
            EXPECT_EQ(rank[step].residual, std::vector<float>(n, 0.0F));
          }
        }
      }
}

TEST(Dense, run_counts_the_messages_of_its_schedule) {
  constexpr std::uint64_t n = 100000;
  for (const std::uint64_t P : {8U, 5U}) {
    const auto L = static_cast<std::uint64_t>(ceil_log2(static_cast<int>(P)));
    const History halving = run_input(static_cast<int>(P), dense_options(DenseSchedule::automatic),
                                      n, 2, Input::dyadic);
    const History ring =
        run_input(static_cast<int>(P), dense_options(DenseSchedule::ring), n, 2, Input::dyadic);
    for (std::size_t rank = 0; rank < P; ++rank) {
      EXPECT_EQ(halving[rank][1].traffic.messages_sent, 2 * L);
      EXPECT_EQ(ring[rank][1].traffic.messages_sent, 2 * (P - 1));
      EXPECT_EQ(halving[rank][1].traffic.bytes_sent, 2 * 4 * n * (P - 1) / P);
      EXPECT_EQ(ring[rank][1].traffic.bytes_sent, 2 * 4 * n * (P - 1) / P);
    }
  }
}

TEST(Dense, predict_takes_the_ring_for_long_vectors) {
  const auto automatic = make_allreduce(find_preset("dense"), {});
  EXPECT_EQ(automatic->predict({.n = 8e6, .k = 1, .P = 8}).bound.messages, 6);
  EXPECT_EQ(automatic->predict({.n = 9e6, .k = 1, .P = 8}).bound.messages, 14);
  const auto fixed =
      make_allreduce(find_preset("dense"), dense_options(DenseSchedule::rabenseifner).allreduce);
  EXPECT_EQ(fixed->predict({.n = 9e6, .k = 1, .P = 8}).bound.messages, 6);
}

TEST(Dense, run_of_all_ranks_on_inexact_values_is_bitwise_equal) {
  for (const DenseSchedule schedule : {DenseSchedule::rabenseifner, DenseSchedule::ring}) {
    const History run = run_input(5, dense_options(schedule), 1001, 1, Input::gaussian);
    for (const auto& rank : run)
      EXPECT_EQ(rank[0].outcome.dense_update, run[0][0].outcome.dense_update);
  }
}

}  // namespace
}  // namespace oktopk
