// SPDX-License-Identifier: Apache-2.0
// circulant: the messages and words of its skip lists, and what happens to owner memory when the cuts move.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/parts/gather.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/skips.h"
#include "oktopk/laws/witness.h"
#include "oktopk/reduce/reducer_state.h"
#include "tests/support/runs.h"

namespace oktopk::circulant_test {
namespace {

ReducerOptions circulant_options(std::size_t k, const std::string& skips, ResidualKind residual) {
  ReducerOptions options = preset_options("circulant", k);
  options.allreduce.skips = skips;
  options.allreduce.residual = residual;
  options.nan_policy = NanPolicy::local;  // the algorithm's own messages only
  return options;
}

constexpr ResidualKind kRules[] = {ResidualKind::owner_memory, ResidualKind::sender_keeps};

// With halving 2 ceil(log2 P).
TEST(Circulant, run_steady_step_sends_the_messages_of_its_skip_list) {
  const auto expect = [](int P, const std::string& skips, ResidualKind rule) {
    const auto messages = static_cast<std::uint64_t>(message_count(parse_skips(skips, P)) + ceil_log2(P));
    if (skips == "halving") {
      EXPECT_EQ(messages, 2 * static_cast<std::uint64_t>(ceil_log2(P)));
    }
    const History run = run_input(P, circulant_options(200, skips, rule), 20000, 25, Input::gaussian);
    std::size_t steady = 0;
    for (std::size_t step = 1; step < 25; ++step) {
      steady += run[0][step].outcome.refreshed ? 0 : 1;
      for (const auto& rank : run) {
        EXPECT_EQ(rank[step].outcome.refreshed, run[0][step].outcome.refreshed);
        if (rank[step].outcome.refreshed) continue;
        EXPECT_EQ(rank[step].traffic.messages_sent, messages) << "P = " << P << ", " << skips;
      }
    }
    EXPECT_GE(steady, 12u) << "P = " << P << ", " << to_string(rule);
  };
  for (const ResidualKind rule : kRules)
    for (const int P : {2, 3, 4, 5, 7, 8, 12}) expect(P, "halving", rule);
  for (const int P : {7, 8})
    for (const char* skips : {"direct", "power", "grid", "radix:3"}) expect(P, skips, ResidualKind::owner_memory);
}

TEST(Circulant, run_direct_steady_steps_move_at_most_3_85_k_words) {
  constexpr std::size_t k = 1000;
  constexpr Index n = 100000;
  for (const ResidualKind rule : kRules)
    for (const int P : {8, 5}) {
      const ReducerOptions options = circulant_options(k, "direct", rule);
      const auto allreduce = make_allreduce(find_preset("circulant"), options.allreduce);
      const double bound = allreduce->predict({.n = n, .k = k, .P = P}).bound.bytes;
      // Two frames, a note, a size, a header with counts of up to ten bits.
      const double framing = (P - 1) * (6.0 + 6 + 7 + 2 + 40);
      const History run = run_input(P, options, n, 20, Input::gaussian);
      double sent = 0;
      double steps = 0;
      for (std::size_t step = 1; step < 20; ++step) {
        if (run[0][step].outcome.refreshed) continue;
        for (const auto& rank : run) {
          // Five standard deviations of what arrives for one region.
          EXPECT_LE(static_cast<double>(rank[step].traffic.duplex_bytes),
                    bound + 8 * 5 * std::sqrt(static_cast<double>(k)));
          sent += static_cast<double>(rank[step].traffic.bytes_sent) / P;
        }
        ++steps;
      }
      ASSERT_GE(steps, 8);
      EXPECT_LE(sent / steps, 4 * 3.5 * 1.1 * k + framing) << "P = " << P << ", " << to_string(rule);
    }
}

TEST(Circulant, run_count_stays_near_k_in_steady_steps) {
  constexpr std::size_t k = 1000;
  const History run =
      run_input(4, circulant_options(k, "halving", ResidualKind::owner_memory), 50000, 60, Input::gaussian);
  double missing = 0;
  for (std::size_t step = 20; step < 60; ++step)
    missing += static_cast<double>(k - run[0][step].outcome.update.size()) / k;
  EXPECT_LT(missing / 40, 0.05);
}

// Even for 20 steps, then everything moves into the first eighth: the owner of it is overloaded.
std::vector<float> moving_gradient(Index n, int rank, int step) {
  std::vector<float> g = make_input(Input::dyadic, n, rank, static_cast<std::uint64_t>(step), 3);
  if (step >= 20)
    for (Index i = 0; i < n; ++i) g[i] *= i < n / 8 ? 32.0F : 0.0F;
  return g;
}

TEST(Circulant, run_recuts_when_the_load_moves_and_conserves_mass_across_it) {
  constexpr Index n = 4000;
  for (const ResidualKind rule : kRules) {
    std::vector<int> recuts(8, 0);
    run_world("threads", 8, [&](Communicator& comm) {
      CountingCommunicator counting(comm);
      Reducer reducer(counting, n, circulant_options(80, "halving", rule));
      for (int step = 0; step < 60; ++step) {
        const Range before = state_of(reducer).unsent.memory().region;
        const Witness w = witness_step(comm, counting, reducer, moving_gradient(n, comm.rank(), step));
        Dense had = add_up(w.accumulators);
        Dense has = add_up(w.residuals);
        for (std::size_t i = 0; i < n; ++i) {
          had[i] += w.memory_before[i];
          has[i] += w.memory_after[i] + w.sum[i];
        }
        ASSERT_EQ(had, has) << "step " << step;
        if (step == 0 || state_of(reducer).unsent.memory().region == before) continue;
        ++recuts[static_cast<std::size_t>(comm.rank())];
        EXPECT_EQ(state_of(reducer).outcome.returned.empty(), rule == ResidualKind::sender_keeps);
        for (const float m : state_of(reducer).unsent.memory().values) EXPECT_EQ(m, 0);
      }
      EXPECT_LE(state_of(reducer).unsent.memory().region.begin, n);
      if (comm.rank() == 0) {
        EXPECT_LT(state_of(reducer).unsent.memory().region.end, n / 16);
      }
    });
    EXPECT_GE(recuts[0], 1) << to_string(rule);
  }
}

constexpr Index kHotN = 600;

// Every rank sends one index in every step: whoever owns it is overloaded, and no cut helps.
std::vector<float> hot_gradient(int rank, int step) {
  std::vector<float> g = make_input(Input::dyadic, kHotN, rank, static_cast<std::uint64_t>(step), 3);
  g[250] = 4096;
  return g;
}

TEST(Circulant, save_and_load_keep_the_pause_between_recuts) {
  const ReducerOptions options = circulant_options(2, "halving", ResidualKind::owner_memory);
  run_world("threads", 13, [&](Communicator& comm) {
    Reducer reducer(comm, kHotN, options);
    for (int step = 0; step < 70; ++step) reducer.step(hot_gradient(comm.rank(), step));
    Reducer resumed(comm, kHotN, options);
    resumed.load(reducer.save());
    EXPECT_EQ(resumed.save(), reducer.save());  // the rule's pause is a part of it
    for (int step = 70; step < 100; ++step) {
      reducer.step(hot_gradient(comm.rank(), step));
      resumed.step(hot_gradient(comm.rank(), step));
      ASSERT_EQ(state_of(resumed).unsent.memory().region, state_of(reducer).unsent.memory().region) << step;
    }
  });
}

TEST(Circulant, make_refuses_skips_that_do_not_fit_the_world) {
  run_world("threads", 3, [](Communicator& comm) {
    for (const std::string skips : {"4,2,1", "3,2", "none", "3,3,1"})
      EXPECT_THROW(Reducer(comm, 100, circulant_options(10, skips, ResidualKind::owner_memory)), UsageError) << skips;
    const auto allreduce =
        make_allreduce(find_preset("circulant"), circulant_options(10, "4,2,1", ResidualKind::owner_memory).allreduce);
    Outcome out;
    EXPECT_THROW(allreduce->run(comm, *make_cpu_device(), {}, 100, 10, out), UsageError);
  });
}

}  // namespace
}  // namespace oktopk::circulant_test
