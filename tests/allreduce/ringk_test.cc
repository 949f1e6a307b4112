// SPDX-License-Identifier: Apache-2.0
// The preset of the tutorial (docs/tutorials/new_allreduce.md): agreement, truth, honesty and lossy codecs.
#include <gtest/gtest.h>

#include <array>

#include "examples/new_preset/ringk.h"
#include "oktopk/laws/truth.h"
#include "tests/support/runs.h"

namespace oktopk::ringk_test {
namespace {

constexpr std::array kCleared = {ResidualKind::all_sent_cleared};
constexpr Preset kRingK = {"ringk", "the selections travel around a ring, union applied", "exact", kCleared,
                           make_ringk};
constexpr Index kN = 2000;
constexpr std::size_t kK = 40;

History run_ringk(int P, const AllreduceOptions& options) {
  return gather_world("threads", P, [&](Communicator& comm) {
    CountingCommunicator counting(comm);
    const auto device = make_cpu_device();
    const auto allreduce = make_allreduce(kRingK, options);
    std::vector<RankStep> ran;
    for (int step = 0; step < 3; ++step) {
      counting.reset();
      RankStep mine;
      mine.selection = both_ends(kN, comm.rank(), step, kK);
      allreduce->run(counting, *device, {mine.selection}, kN, kK, mine.outcome);
      mine.traffic = counting.traffic();
      ran.push_back(std::move(mine));
    }
    return ran;
  });
}

TEST(RingK, run_gives_all_ranks_the_sum_of_the_selections) {
  for (const int P : {1, 2, 3, 5, 8}) {
    const History run = run_ringk(P, {});
    for (std::size_t step = 0; step < 3; ++step)
      for (const auto& rank : run) {
        EXPECT_EQ(list_of(rank[step].outcome.update), list_of(run[0][step].outcome.update)) << "P = " << P;
        EXPECT_EQ(entries_of(rank[step].outcome.update), oracle_sum(selections_of(run, step))) << "P = " << P;
      }
  }
}

TEST(RingK, run_costs_what_predict_says) {
  for (const int P : {2, 5, 8}) {
    const Problem problem{.n = kN, .k = kK, .P = P};
    const Cost bound = make_allreduce(kRingK, {})->predict(problem).bound;
    for (const auto& rank : run_ringk(P, {}))
      for (std::size_t step = 1; step < 3; ++step) {  // the first step also compares the options
        const Traffic& t = rank[step].traffic;
        EXPECT_EQ(static_cast<double>(t.messages_sent), bound.messages);
        EXPECT_LE(static_cast<double>(t.bytes_sent), bound.bytes);
        EXPECT_GT(static_cast<double>(t.bytes_sent), 0.9 * bound.bytes);
      }
  }
}

TEST(RingK, run_with_a_lossy_codec_returns_the_rounding_errors) {
  const History run = run_ringk(3, with_codec("elias_fano+bf16"));
  for (const auto& rank : run) {
    EXPECT_EQ(list_of(rank[1].outcome.update), list_of(run[0][1].outcome.update));
    EXPECT_FALSE(rank[1].outcome.returned.idx.empty());
  }
  Entries sent = oracle_sum(selections_of(run, 1));
  Entries kept = entries_of(run[0][1].outcome.update);
  for (const auto& rank : run) oracle_add(kept, entries_of(rank[1].outcome.returned));
  for (const auto& [i, x] : sent) EXPECT_NEAR(kept[i], x, 1e-6) << i;
}

}  // namespace
}  // namespace oktopk::ringk_test
