// SPDX-License-Identifier: Apache-2.0
// dense: both schedules give the sum of everything at 2n(P-1)/P words; in bf16 at half of them, and
// what is rounded off is not lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "oktopk/allreduce/allreduce.h"
#include "tests/support/runs.h"

namespace oktopk::dense_test {
namespace {

ReducerOptions dense_options(DenseSchedule schedule) {
  ReducerOptions options = preset_options("dense", 1);
  options.allreduce.dense = schedule;
  return options;
}

TEST(Dense, run_any_schedule_and_length_gives_the_sum) {
  for (const DenseSchedule schedule : {DenseSchedule::automatic, DenseSchedule::rabenseifner, DenseSchedule::ring})
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
    const History halving =
        run_input(static_cast<int>(P), dense_options(DenseSchedule::automatic), n, 2, Input::dyadic);
    const History ring = run_input(static_cast<int>(P), dense_options(DenseSchedule::ring), n, 2, Input::dyadic);
    for (std::size_t rank = 0; rank < P; ++rank) {
      EXPECT_EQ(halving[rank][1].traffic.messages_sent, 2 * L);
      EXPECT_EQ(ring[rank][1].traffic.messages_sent, 2 * (P - 1));
      EXPECT_EQ(halving[rank][1].traffic.bytes_sent, 2 * 4 * n * (P - 1) / P);
      EXPECT_EQ(ring[rank][1].traffic.bytes_sent, 2 * 4 * n * (P - 1) / P);
    }
  }
}

constexpr DenseSchedule kSchedules[] = {DenseSchedule::rabenseifner, DenseSchedule::ring};

ReducerOptions bf16_options(DenseSchedule schedule, const std::string& codec = "coo32+bf16") {
  ReducerOptions options = dense_options(schedule);
  options.allreduce.codec = parse_codec(codec);
  return options;
}

// Multiples of 1/8 up to 1/2: sums over few ranks fit into the 8 bits of bf16.
std::vector<float> few_bits(Index n, int rank, int step) {
  std::vector<float> x(n);
  for (Index i = 0; i < n; ++i)
    x[i] = static_cast<float>(static_cast<int>(i * 7 + static_cast<Index>(3 * rank + step)) % 9 - 4) / 8;
  return x;
}

TEST(Dense, run_in_bf16_of_values_with_few_bits_gives_the_sum_and_leaves_nothing) {
  for (const DenseSchedule schedule : kSchedules)
    for (const int P : {1, 2, 3, 5, 8, 12})
      for (const Index n : {1U, 2U, 7U, 1000U}) {
        const auto gradient = [&](int rank, int step) { return few_bits(n, rank, step); };
        const History run = run_gradients(P, bf16_options(schedule), n, 2, gradient);
        for (int step = 0; step < 2; ++step) {
          Uninitialised<float> expected(n, 0.0F);
          for (int rank = 0; rank < P; ++rank)
            for (Index i = 0; i < n; ++i) expected[i] += gradient(rank, step)[i];
          for (const auto& rank : run) {
            const RankStep& ran = rank[static_cast<std::size_t>(step)];
            EXPECT_EQ(ran.outcome.dense_update, expected);
            EXPECT_EQ(ran.residual, std::vector<float>(n, 0.0F));
          }
        }
      }
}

TEST(Dense, run_in_bf16_sends_half_the_bytes_in_as_many_messages) {
  constexpr Index n = 1200;
  for (const DenseSchedule schedule : kSchedules)
    for (const int P : {2, 3, 8}) {
      const History full = run_input(P, dense_options(schedule), n, 2, Input::gaussian);
      const History half = run_input(P, bf16_options(schedule), n, 2, Input::gaussian);
      const auto allreduce = make_allreduce(find_preset("dense"), bf16_options(schedule).allreduce);
      const Prediction predicted = allreduce->predict({.n = n, .k = 1, .P = P});
      for (std::size_t rank = 0; rank < full.size(); ++rank) {
        const Traffic& traffic = half[rank][1].traffic;
        EXPECT_EQ(traffic.messages_sent, full[rank][1].traffic.messages_sent);
        EXPECT_EQ(2 * traffic.bytes_sent, full[rank][1].traffic.bytes_sent);
        EXPECT_EQ(static_cast<double>(traffic.bytes_sent), predicted.expected.bytes);
        EXPECT_EQ(static_cast<double>(traffic.messages_sent), predicted.expected.messages);
      }
    }
}

TEST(Dense, run_in_bf16_applies_the_same_halves_everywhere_and_log_codings_are_bf16) {
  for (const DenseSchedule schedule : kSchedules) {
    const History run = run_input(5, bf16_options(schedule), 1001, 3, Input::gaussian);
    for (std::size_t step = 0; step < 3; ++step) {
      for (const float x : run[0][step].outcome.dense_update) ASSERT_EQ(std::bit_cast<std::uint32_t>(x) & 0xFFFFU, 0U);
      for (const auto& rank : run) {
        EXPECT_EQ(rank[step].outcome.dense_update, run[0][step].outcome.dense_update);
        EXPECT_EQ(rank[step].outcome.dense_returned.size(), 1001U);
      }
    }
    for (const char* codec : {"elias_fano+log8", "bitmap+log4"}) {
      const History other = run_input(5, bf16_options(schedule, codec), 1001, 3, Input::gaussian);
      EXPECT_EQ(other[4][2].outcome.dense_update, run[4][2].outcome.dense_update) << codec;
    }
  }
}

// The same gradient again and again: rounding once and for all would miss the sum by the same in
// every step; the errors that are kept make up for it.
TEST(Dense, run_in_bf16_makes_up_for_its_rounding) {
  constexpr Index n = 300;
  constexpr int kSteps = 64;
  for (const DenseSchedule schedule : kSchedules)
    for (const int P : {2, 5}) {
      const auto gradient = [&](int rank, int) { return make_input(Input::gaussian, n, rank, 0, 1); };
      const History run = run_gradients(P, bf16_options(schedule), n, kSteps, gradient);
      for (Index i = 0; i < n; ++i) {
        double sum = 0;
        double size = 0;
        for (int rank = 0; rank < P; ++rank) {
          sum += double{gradient(rank, 0)[i]};
          size += std::fabs(double{gradient(rank, 0)[i]});
        }
        double applied = 0;
        for (const RankStep& step : run[0]) applied += double{step.outcome.dense_update[i]};
        // The residual is at most a half of the last bit of each sum on the way.
        ASSERT_NEAR(applied, kSteps * sum, 2 * (P + 1) * size / 256) << i;
      }
    }
}

TEST(Dense, run_in_bf16_of_the_largest_floats_saturates_and_sends_the_rest_later) {
  constexpr float kMost = std::numeric_limits<float>::max();
  constexpr float kMostBf16 = 0x1.FEp127F;
  for (const DenseSchedule schedule : kSchedules)
    for (const int P : {1, 3, 4}) {
      const auto gradient = [&](int rank, int step) {
        const float x = rank == 0 && step == 0 ? kMost : 0.0F;
        return std::vector<float>{x, -x, x, -x, x};
      };
      const History run = run_gradients(P, bf16_options(schedule), 5, 4, gradient);
      for (const auto& rank : run)
        for (std::size_t i = 0; i < 5; ++i) {
          const double sign = i % 2 == 0 ? 1 : -1;
          EXPECT_EQ(rank[0].outcome.dense_update[i], sign * double{kMostBf16});
          double applied = 0;
          for (const RankStep& step : rank) applied += double{step.outcome.dense_update[i]};
          EXPECT_EQ(applied, sign * double{kMost});
        }
    }
}

// Only the first region's sum is too large: whoever would round it says so, its peers see it die.
TEST(Dense, run_in_bf16_of_sums_that_overflow_is_an_error_everywhere) {
  for (const DenseSchedule schedule : kSchedules)
    for (const int P : {2, 3, 5}) {
      const auto ends = gather_world("threads", P, [&](Communicator& comm) -> std::string {
        Reducer reducer(comm, 7, bf16_options(schedule));
        std::vector<float> large(7, 1.0F);
        large[0] = std::numeric_limits<float>::max();
        try {
          reducer.step(large);
        } catch (const UsageError& error) {
          EXPECT_NE(std::string(error.what()).find("overflowed"), std::string::npos);
          return "usage";
        } catch (const CommError&) {
          return "comm";
        }
        return "none";
      });
      EXPECT_EQ(std::count(ends.begin(), ends.end(), "none"), 0) << "P = " << P;
      EXPECT_GE(std::count(ends.begin(), ends.end(), "usage"), 1) << "P = " << P;
    }
}

TEST(Dense, predict_takes_the_ring_for_long_vectors) {
  const auto automatic = make_allreduce(find_preset("dense"), {});
  EXPECT_EQ(automatic->predict({.n = 8e6, .k = 1, .P = 8}).bound.messages, 6);
  EXPECT_EQ(automatic->predict({.n = 9e6, .k = 1, .P = 8}).bound.messages, 14);
  const auto fixed = make_allreduce(find_preset("dense"), dense_options(DenseSchedule::rabenseifner).allreduce);
  EXPECT_EQ(fixed->predict({.n = 9e6, .k = 1, .P = 8}).bound.messages, 6);
}

TEST(Dense, run_of_all_ranks_on_inexact_values_is_bitwise_equal) {
  for (const DenseSchedule schedule : {DenseSchedule::rabenseifner, DenseSchedule::ring}) {
    const History run = run_input(5, dense_options(schedule), 1001, 1, Input::gaussian);
    for (const auto& rank : run) EXPECT_EQ(rank[0].outcome.dense_update, run[0][0].outcome.dense_update);
  }
}

}  // namespace
}  // namespace oktopk::dense_test
