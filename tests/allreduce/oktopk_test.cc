// SPDX-License-Identifier: Apache-2.0
// oktopk: O(k) words in reuse steps, the balance step on skewed sums, and the exactness of its
// thresholds: by the paper's rule (evaluated every tau' steps) and steered (ours).
#include <gtest/gtest.h>

#include <cmath>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/parts/gather.h"
#include "oktopk/allreduce/parts/thresholds.h"
#include "oktopk/base/error.h"
#include "oktopk/reduce/reducer_state.h"
#include "tests/support/runs.h"
#include "oktopk/laws/gradient_stream.h"

namespace oktopk::oktopk_test {
namespace {

ReducerOptions by_the_paper(std::size_t k) {
  ReducerOptions options = preset_options("oktopk", k);
  options.allreduce.thresholds = ThresholdRule::paper;
  return options;
}

TEST(Oktopk, run_reuse_step_moves_at_most_6k_words_and_the_messages_of_its_bound) {
  constexpr Index n = 100000;
  for (const int P : {8, 5}) {
    const ReducerOptions options = by_the_paper(1000);
    const auto allreduce = make_allreduce(find_preset("oktopk"), options.allreduce);
    const History run = run_input(P, options, n, 6, Input::gaussian);
    for (std::size_t step = 1; step < 6; ++step) {
      std::size_t most = 0;
      for (const auto& rank : run) most = std::max(most, rank[step].selection.size());
      const std::size_t gathered = run[0][step].outcome.update.size();
      const Prediction prediction = allreduce->predict(
          {.n = n, .k = static_cast<double>(most), .gathered = static_cast<double>(gathered), .P = P});
      // Counts per region vary by chance; 5 standard deviations of what P ranks send to one.
      const double chance = 8 * 5 * std::sqrt(static_cast<double>(most));
      const double peers = P - 1;
      const double framing = peers * (6 + 6 + 2 + kSizesBytes);  // two frames, prefix, sizes
      for (const auto& rank : run) {
        const Traffic& t = rank[step].traffic;
        EXPECT_FALSE(rank[step].outcome.refreshed);
        EXPECT_LE(static_cast<double>(t.duplex_bytes), prediction.bound.bytes + chance);
        EXPECT_LE(static_cast<double>(t.duplex_bytes),
                  peers / P * 24 * static_cast<double>(std::max(most, gathered)) + framing);
        EXPECT_EQ(t.messages_sent, static_cast<std::uint64_t>(P - 1 + 2 * ceil_log2(P)));
      }
    }
  }
}

TEST(Oktopk, run_by_the_paper_refreshes_every_tau_and_tau_prime) {
  ReducerOptions options = by_the_paper(20);
  options.allreduce.tau = 4;
  options.allreduce.tau_prime = 3;
  const History run = run_input(3, options, 1000, 13, Input::dyadic);
  for (std::size_t step = 0; step < 13; ++step) {
    EXPECT_EQ(run[0][step].outcome.refreshed, step % 4 == 0 || step % 3 == 0) << step;
    if (step % 3 == 0) {
      EXPECT_EQ(run[0][step].outcome.update.size(), 20u);
    }
  }
}

// Step 0 spreads the selections evenly, which places the cuts; later steps put everything into the
// first region, so that rank 0 owns the whole result.
SparseVector skewed_selection(int rank, int step) {
  Random random(5, static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(step));
  SparseVector v = random_sparse(random, 200, 0, step == 0 ? 80000 : 2000);
  if (step > 0)
    for (float& x : v.val) x *= 8;
  return v;
}

TEST(Oktopk, run_with_all_sums_on_one_rank_balances_and_is_right) {
  constexpr int P = 8;
  constexpr std::size_t k = 200;
  AllreduceOptions paper;
  paper.thresholds = ThresholdRule::paper;
  AllreduceOptions never = paper;
  never.balance_trigger = 1e9;
  const History balanced = run_selections(P, "oktopk", paper, 80000, k, 4, skewed_selection);
  const History unbalanced = run_selections(P, "oktopk", never, 80000, k, 4, skewed_selection);
  const double threshold = oracle_kth(oracle_sum(selections_of(balanced, 0)), k);
  for (std::size_t step = 1; step < 4; ++step) {
    const Entries expected = oracle_at_least(oracle_sum(selections_of(balanced, step)), threshold);
    ASSERT_GT(expected.size(), 100u);
    std::uint64_t extra = 0;
    for (std::size_t rank = 0; rank < P; ++rank) {
      EXPECT_EQ(entries_of(balanced[rank][step].outcome.update), expected);
      EXPECT_EQ(entries_of(unbalanced[rank][step].outcome.update), expected);
      extra += balanced[rank][step].traffic.messages_sent - unbalanced[rank][step].traffic.messages_sent;
    }
    EXPECT_EQ(extra, static_cast<std::uint64_t>(P - 1)) << "rank 0 hands a piece to everyone";
  }
}

// With steered thresholds these steps evaluate by counting; the k largest all lie on rank 0.
TEST(Oktopk, run_steered_with_all_sums_on_one_rank_balances_the_k_largest) {
  const History run = run_selections(8, "oktopk", {}, 80000, 200, 3, skewed_selection);
  for (std::size_t step = 0; step < 2; ++step)
    for (const auto& rank : run)
      EXPECT_EQ(entries_of(rank[step].outcome.update), oracle_top(oracle_sum(selections_of(run, step)), 200));
}

TEST(Oktopk, run_steered_evaluation_gives_the_k_largest_and_costs_small_messages) {
  for (const int P : {1, 3, 4, 5, 8}) {
    const History run = run_input(P, preset_options("oktopk", 50), 3000, 1, Input::dyadic);
    const Entries sum = oracle_sum(selections_of(run, 0));
    const auto L = static_cast<std::uint64_t>(ceil_log2(P));
    for (const auto& rank : run) {
      EXPECT_TRUE(rank[0].outcome.refreshed);
      EXPECT_EQ(entries_of(rank[0].outcome.update), oracle_top(sum, 50)) << P;
      // agreement, votes, split, four counts, sizes, gather
      EXPECT_EQ(rank[0].traffic.duplex_messages, 2 * L + static_cast<std::uint64_t>(P - 1) + 5 * L + 2 * L) << P;
    }
  }
}

// Equal sums lie in all regions: of those, the lowest indices are taken, whoever owns them.
TEST(Oktopk, run_steered_with_ties_takes_the_lowest_indices_across_ranks) {
  const auto equal_sums = [](int rank, int) {
    SparseVector v;  // 40 P indices, each of one rank; ten of a rank's are larger than the others
    for (Index i = 0; i < 40; ++i) v.push_back(24 * i + static_cast<Index>(rank), i % 4 == 3 ? -2.0F : 1.0F);
    return v;
  };
  for (const int P : {3, 4, 5}) {
    const History run = run_selections(P, "oktopk", {}, 1000, 75, 1, equal_sums);
    for (const auto& rank : run)
      EXPECT_EQ(entries_of(rank[0].outcome.update), oracle_top(oracle_sum(selections_of(run, 0)), 75)) << P;
  }
}

// The counts of each rank over a stream with error feedback.
History run_stream(int P, const ReducerOptions& options, const StreamSpec& spec, int steps) {
  return run_gradients(P, options, spec.n, steps, [&](int rank, int step) {
    GradientStream stream(spec, rank);
    const auto x = stream.at(static_cast<std::uint64_t>(step));
    return std::vector<float>(x.begin(), x.end());
  });
}

TEST(Oktopk, run_steered_counts_stay_in_the_band_around_k) {
  constexpr std::size_t k = 100;
  for (const StreamEvent event : {StreamEvent::none, StreamEvent::jump, StreamEvent::zero_first}) {
    const History run =
        run_stream(3, preset_options("oktopk", k), {.data = Input::gaussian, .n = 5000, .event = event}, 40);
    const double most = SumThreshold::most_gathered(k);
    for (std::size_t step = event == StreamEvent::zero_first ? 1 : 0; step < 40; ++step) {
      const auto count = static_cast<double>(run[0][step].outcome.update.size());
      EXPECT_LE(count, most) << step;
      EXPECT_GE(count, 2 * k - most) << step;
    }
  }
}

TEST(Oktopk, run_steered_after_a_first_accumulator_of_zeros_gives_k) {
  const StreamSpec spec{.data = Input::gaussian, .n = 5000, .event = StreamEvent::zero_first};
  const History run = run_stream(3, preset_options("oktopk", 100), spec, 2);
  EXPECT_EQ(run[0][0].outcome.update.size(), 0u);
  EXPECT_EQ(run[0][1].outcome.update.size(), 100u);
  EXPECT_TRUE(run[0][1].outcome.refreshed);
}

// A first step of zeros by the paper's rule, too: nothing is let through for want of a threshold.
TEST(Oktopk, run_by_the_paper_after_a_first_accumulator_of_zeros_evaluates_again) {
  const StreamSpec spec{.data = Input::gaussian, .n = 5000, .event = StreamEvent::zero_first};
  const History run = run_stream(3, by_the_paper(100), spec, 2);
  EXPECT_EQ(run[0][1].outcome.update.size(), 100u);
}

TEST(Oktopk, run_steered_meets_a_jump_of_scale_with_an_evaluation) {
  const StreamSpec spec{.data = Input::gaussian, .n = 5000, .event = StreamEvent::jump};
  const History run = run_stream(4, preset_options("oktopk", 100), spec, 26);
  EXPECT_TRUE(run[0][24].outcome.refreshed);
  EXPECT_EQ(run[0][24].outcome.update.size(), 100u);
}

TEST(Oktopk, run_saved_in_the_middle_goes_on_bit_by_bit_by_every_rule) {
  constexpr Index n = 3000;
  for (const ThresholdRule rule : {ThresholdRule::paper, ThresholdRule::published, ThresholdRule::steered}) {
    ReducerOptions options = preset_options("oktopk", 60);
    options.allreduce.thresholds = rule;
    run_world("threads", 3, [&](Communicator& comm) {
      GradientStream stream({.data = Input::gaussian, .n = n, .shared = 0.3}, comm.rank());
      Reducer whole(comm, n, options);
      Reducer resumed(comm, n, options);
      for (std::uint64_t step = 0; step < 21; ++step) whole.step(stream.at(step));
      resumed.load(whole.save());
      for (std::uint64_t step = 21; step < 60; ++step) {
        whole.step(stream.at(step));
        resumed.step(stream.at(step));
        ASSERT_EQ(list_of(state_of(whole).outcome.update), list_of(state_of(resumed).outcome.update)) << step;
        ASSERT_EQ(state_of(whole).outcome.refreshed, state_of(resumed).outcome.refreshed) << step;
      }
      EXPECT_EQ(whole.save(), resumed.save());
    });
  }
}

TEST(Oktopk, run_with_any_bucket_size_gives_the_same_bits) {
  std::vector<History> runs;
  for (const int bucket : {1, 3, 100}) {
    ReducerOptions options = preset_options("oktopk", 100);
    options.allreduce.bucket = bucket;
    options.allreduce.tau_prime = 2;
    runs.push_back(run_input(8, options, 5000, 4, Input::gaussian));
  }
  for (std::size_t rank = 0; rank < 8; ++rank)
    for (std::size_t step = 0; step < 4; ++step)
      for (const History& run : runs)
        EXPECT_EQ(list_of(run[rank][step].outcome.update), list_of(runs[0][0][step].outcome.update));
}

TEST(Oktopk, run_clears_on_a_rank_only_what_it_sent_and_was_applied) {
  const History run = run_input(4, preset_options("oktopk", 30), 1000, 1, Input::dyadic);
  for (int rank = 0; rank < 4; ++rank) {
    const RankStep& step = run[static_cast<std::size_t>(rank)][0];
    const Entries update = entries_of(step.outcome.update);
    const Entries sent = entries_of(step.selection);
    const auto gradient = make_input(Input::dyadic, 1000, rank, 0, 1);
    for (Index i = 0; i < 1000; ++i)
      EXPECT_EQ(step.residual[i], sent.contains(i) && update.contains(i) ? 0 : gradient[i]);
  }
}

TEST(Oktopk, make_refuses_options_out_of_range) {
  const Preset& preset = find_preset("oktopk");
  const auto with = [&](auto change) {
    AllreduceOptions options;
    change(options);
    return make_allreduce(preset, options);
  };
  EXPECT_THROW(with([](auto& o) { o.tau = 0; }), UsageError);
  EXPECT_THROW(with([](auto& o) { o.tau_prime = 0; }), UsageError);
  EXPECT_THROW(with([](auto& o) { o.bucket = 0; }), UsageError);
  EXPECT_THROW(with([](auto& o) { o.balance_trigger = 0.5; }), UsageError);
  EXPECT_NO_THROW(with([](auto&) {}));
}

TEST(Oktopk, run_with_indices_beyond_24_bits_is_exact) {
  constexpr Index n = 50000000;
  constexpr std::size_t k = 50;
  const History run =
      run_selections(3, "oktopk", {}, n, k, 2, [](int rank, int step) { return both_ends(n, rank, step, k); });
  const Entries sum = oracle_sum(selections_of(run, 0));
  const Entries later = oracle_sum(selections_of(run, 1));
  for (const auto& rank : run) {
    EXPECT_EQ(entries_of(rank[0].outcome.update), oracle_top(sum, k));
    EXPECT_EQ(entries_of(rank[1].outcome.update), oracle_at_least(later, oracle_kth(sum, k)));
  }
  EXPECT_GT(run[0][0].outcome.update.idx.back(), n - 100);
}

}  // namespace
}  // namespace oktopk::oktopk_test
