// SPDX-License-Identifier: Apache-2.0
#include "oktopk/tune/best_skips.h"

#include <gtest/gtest.h>

#include <functional>

#include "oktopk/allreduce/parts/reduce_scatter.h"
#include "oktopk/base/error.h"

namespace oktopk::skips_test {
namespace {

const Problem kProblem{.n = 1e6, .k = 1e4, .P = 1};

double time_of(const Skips& skips, const Problem& problem, Codec codec, const Machine& machine) {
  const BlockTally tally;  // circulant's blocks carry tallies
  return seconds(SparseReduceScatter::predict(skips, problem, codec, {.tally = &tally}), machine);
}

// Of all skip lists there are.
double least_time(const Problem& problem, Codec codec, const Machine& machine) {
  double least = 1e300;
  Skips skips = {problem.P};
  const std::function<void()> extend = [&] {
    if (skips.back() == 1) {
      least = std::min(least, time_of(skips, problem, codec, machine));
      return;
    }
    for (int T = skips.back() - 1; T >= 1; --T) {
      skips.push_back(T);
      extend();
      skips.pop_back();
    }
  };
  extend();
  return least;
}

TEST(BestSkips, equal_the_best_of_all_lists) {
  const Machine machines[] = {{.alpha = 2e-5, .beta = 3e-10, .gamma = 3e-9, .overhead = 4e-6},
                              {.alpha = 1e-6, .beta = 8e-11, .gamma = 1e-9, .overhead = 5e-7, .contention = 3},
                              {.alpha = 0, .beta = 1e-8},
                              {.alpha = 1e-3, .beta = 1e-12}};
  for (const Machine& machine : machines)
    for (const double exponent : {0.0, 0.6, 1.0})
      for (const Codec codec : {Codec{}, Codec{IndexCoding::elias_fano, ValueCoding::bf16}})
        for (const int P : {1, 2, 3, 5, 7, 8, 12, 13}) {
          Problem problem = kProblem;
          problem.P = P;
          problem.union_exponent = exponent;
          const Skips skips = best_skips(problem, codec, machine);
          check_skips(skips, P);
          EXPECT_NEAR(time_of(skips, problem, codec, machine), least_time(problem, codec, machine), 1e-15)
              << P << ' ' << to_string(skips);
        }
}

TEST(BestSkips, dear_messages_ask_for_few_and_dear_bytes_for_direct_ones) {
  for (const int P : {2, 3, 5, 8, 24, 64, 100}) {
    Problem problem = kProblem;
    problem.P = P;
    const Skips few = best_skips(problem, {}, {.overhead = 1e-3});
    EXPECT_EQ(message_count(few), ceil_log2(P)) << to_string(few);
    // Every contribution goes straight to its owner.
    const Skips direct = best_skips(problem, {}, {.beta = 1e-9});
    EXPECT_EQ(direct, direct_skips(P)) << to_string(direct);
  }
}

TEST(BestSkips, serve_a_thousand_ranks) {
  Problem problem = kProblem;
  problem.P = 1024;
  const Skips skips = best_skips(problem, {}, {.alpha = 2e-5, .beta = 3e-10, .gamma = 3e-9, .overhead = 4e-6});
  check_skips(skips, 1024);
  EXPECT_GE(message_count(skips), 10);
}

TEST(BestSkips, refuse_a_world_without_ranks) {
  Problem problem = kProblem;
  problem.P = 0;
  EXPECT_THROW(best_skips(problem, {}, {}), UsageError);
}

}  // namespace
}  // namespace oktopk::skips_test
