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

TEST(Dense, run_of_values_with_few_bits_gives_the_sum_and_leaves_nothing) {
  for (const ReducerOptions& options : {dense_options(DenseSchedule::automatic), dense_options(DenseSchedule::ring),
                                        bf16_options(DenseSchedule::rabenseifner), bf16_options(DenseSchedule::ring)})
    for (const int P : {1, 2, 3, 5, 8, 12})
      for (const Index n : {1U, 2U, 7U, 1000U}) {
        const auto gradient = [&](int rank, int step) { return few_bits(n, rank, step); };
        const History run = run_gradients(P, options, n, 2, gradient);
        for (int step = 0; step < 2; ++step) {
          Uninitialised<float> expected(n, 0.0F);
          for (int rank = 0; rank < P; ++rank)
            for (Index i = 0; i < n; ++i) expected[i] += gradient(rank, step)[i];
          for (const auto& rank : run) {
            const RankStep& ran = rank[static_cast<std::size_t>(step)];
            EXPECT_EQ(ran.outcome.dense_update, expected);
            EXPECT_TRUE(ran.outcome.update.empty());
            EXPECT_EQ(ran.residual, std::vector<float>(n, 0.0F));
          }
        }
      }
}

TEST(Dense, run_sends_what_its_schedule_and_coding_say) {
  constexpr std::uint64_t n = 1200;
  for (const DenseSchedule schedule : kSchedules)
    for (const std::uint64_t P : {2U, 3U, 8U})
      for (const bool is_half : {false, true}) {
        const auto L = static_cast<std::uint64_t>(ceil_log2(static_cast<int>(P)));
        const ReducerOptions options = is_half ? bf16_options(schedule) : dense_options(schedule);
        const Prediction predicted = make_allreduce(find_preset("dense"), options.allreduce)
                                         ->predict({.n = n, .k = 1, .P = static_cast<int>(P)});
        for (const auto& rank : run_input(static_cast<int>(P), options, n, 2, Input::gaussian)) {
          const Traffic& traffic = rank[1].traffic;
          EXPECT_EQ(traffic.messages_sent, 2 * (schedule == DenseSchedule::ring ? P - 1 : L));
          EXPECT_EQ(traffic.bytes_sent, 2 * (is_half ? 2 : 4) * n * (P - 1) / P);
          EXPECT_EQ(static_cast<double>(traffic.bytes_sent), predicted.expected.bytes);
          EXPECT_EQ(static_cast<double>(traffic.messages_sent), predicted.expected.messages);
        }
      }
}

TEST(Dense, run_with_log_codings_is_in_bf16) {
  for (const DenseSchedule schedule : kSchedules) {
    const History run = run_input(5, bf16_options(schedule), 1001, 3, Input::gaussian);
    for (const RankStep& step : run[0]) {
      for (const float x : step.outcome.dense_update) ASSERT_EQ(std::bit_cast<std::uint32_t>(x) & 0xFFFFU, 0U);
      EXPECT_EQ(step.outcome.dense_returned.size(), 1001U);
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

TEST(Dense, predict_takes_the_ring_for_long_vectors) {
  const auto automatic = make_allreduce(find_preset("dense"), {});
  EXPECT_EQ(automatic->predict({.n = 8e6, .k = 1, .P = 8}).bound.messages, 6);
  EXPECT_EQ(automatic->predict({.n = 9e6, .k = 1, .P = 8}).bound.messages, 14);
  const auto fixed = make_allreduce(find_preset("dense"), dense_options(DenseSchedule::rabenseifner).allreduce);
  EXPECT_EQ(fixed->predict({.n = 9e6, .k = 1, .P = 8}).bound.messages, 6);
}

}  // namespace
}  // namespace oktopk::dense_test
