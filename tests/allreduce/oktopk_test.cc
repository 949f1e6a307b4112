// SPDX-License-Identifier: Apache-2.0
// oktopk: O(k) words in reuse steps, the balance step on skewed sums, and the exactness of its
// thresholds: by the paper's rule (evaluated every tau' steps) and steered (ours).
#include <gtest/gtest.h>

#include <cmath>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/parts/gather.h"
#include "oktopk/allreduce/parts/thresholds.h"
#include "oktopk/base/error.h"
#include "oktopk/laws/gradient_stream.h"
#include "tests/support/runs.h"

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
    if (event != StreamEvent::jump) continue;
    EXPECT_TRUE(run[0][24].outcome.refreshed);
    EXPECT_EQ(run[0][24].outcome.update.size(), k);
  }
}

// Nothing is let through for want of a threshold.
TEST(Oktopk, run_after_a_first_accumulator_of_zeros_gives_k_by_every_rule) {
  const StreamSpec spec{.data = Input::gaussian, .n = 5000, .event = StreamEvent::zero_first};
  for (const ReducerOptions& options : {preset_options("oktopk", 100), by_the_paper(100)}) {
    const History run = run_stream(3, options, spec, 2);
    EXPECT_EQ(run[0][0].outcome.update.size(), 0u);
    EXPECT_EQ(run[0][1].outcome.update.size(), 100u);
    EXPECT_TRUE(run[0][1].outcome.refreshed);
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

}  // namespace
}  // namespace oktopk::oktopk_test
