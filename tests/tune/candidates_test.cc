// SPDX-License-Identifier: Apache-2.0
#include "oktopk/tune/candidates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/parts/reduce_scatter.h"
#include "oktopk/allreduce/presets.h"
#include "oktopk/base/error.h"

namespace oktopk::candidates_test {
namespace {

Profile network(double alpha, double beta) {
  Profile profile;
  profile.machine.alpha = alpha;
  profile.machine.beta = beta;
  return profile;
}

Problem problem_of(double n, double density, int P) { return {.n = n, .k = n * density, .P = P}; }

TEST(Candidates, takes_circulant_on_a_slow_network_and_dense_where_bytes_are_free) {
  const Problem problem = problem_of(25e6, 0.01, 64);
  const Candidate slow = rank_candidates(problem, network(2e-5, 3.2e-10), {}).front();
  EXPECT_EQ(slow.method.preset, "circulant");
  Profile fast = network(1e-6, 0);
  fast.machine.sigma = 2e-9;
  const Candidate free_bytes = rank_candidates(problem, fast, {}).front();
  EXPECT_EQ(free_bytes.method.preset, "dense");
}

TEST(Candidates, takes_dense_when_everything_is_selected) {
  for (const int P : {2, 3, 8, 64})
    EXPECT_EQ(rank_candidates(problem_of(1e6, 1.0, P), {}, {}).front().method.preset, "dense") << P;
  EXPECT_EQ(best_of({.preset = "dense"}, problem_of(1e6, 1.0, 1), {}, {}).method.codec, Codec{})
      << "exact, if it is free";
}

TEST(Candidates, never_predicts_more_than_dense) {
  for (const double n : {1e3, 1e5, 1e7})
    for (const double density : {0.001, 0.01, 0.1, 1.0})
      for (const int P : {1, 2, 3, 16, 100}) {
        const auto all = rank_candidates(problem_of(n, density, P), {}, {});
        const ChoiceOptions options;
        double dense = 0;
        for (const Candidate& c : all)
          if (c.method.preset == "dense") dense = c.seconds;
        EXPECT_LE(all.front().seconds, dense * (1 + options.preference));
        EXPECT_GT(dense, 0);
      }
}

TEST(Candidates, an_external_dense_takes_the_place_of_ours_at_its_own_price) {
  const Problem problem = problem_of(1e6, 0.01, 8);
  Profile profile = network(2e-5, 3.2e-10);
  ChoiceOptions options{.external_dense = true};
  const auto is_external = [](const Candidate& c) { return c.external; };
  const auto priced_like_ours = rank_candidates(problem, profile, options);
  const auto found = std::ranges::find_if(priced_like_ours, is_external);
  ASSERT_NE(found, priced_like_ours.end());
  const Candidate ours = price(found->method, problem, profile, {});
  EXPECT_EQ(found->seconds, ours.seconds);
  EXPECT_FALSE(ours.external);
  profile.external_dense = {.latency = 1e-4, .per_byte = 1e-12};
  const Candidate best = rank_candidates(problem, profile, options).front();
  EXPECT_TRUE(best.external);
  EXPECT_EQ(to_string(best.method), "dense fp32");
  EXPECT_DOUBLE_EQ(best.seconds, 1e-4 + 4e6 * 1e-12);
  int dense = 0;
  for (const Candidate& c : rank_candidates(problem, profile, options)) dense += c.method.preset == "dense" ? 1 : 0;
  EXPECT_EQ(dense, 2) << "the caller's in fp32, ours in bf16";
  options.coarsest = ValueCoding::fp32;
  for (const Candidate& c : rank_candidates(problem, profile, options))
    EXPECT_EQ(c.external, c.method.preset == "dense");
}

TEST(Candidates, prefers_our_own_only_within_the_margin) {
  const Problem problem = problem_of(1e6, 0.01, 16);
  ChoiceOptions options;
  options.preference = 0;
  const auto strict = rank_candidates(problem, {}, options);
  for (std::size_t i = 1; i < strict.size(); ++i) EXPECT_LE(strict[i - 1].seconds, strict[i].seconds);
  options.preference = 1e9;
  const auto lenient = rank_candidates(problem, {}, options);
  EXPECT_EQ(lenient.size(), strict.size());
  EXPECT_TRUE(lenient[0].method.preset == "circulant" || lenient[0].method.preset == "dense");
  options.presets = {"topka"};
  EXPECT_EQ(rank_candidates(problem, {}, options)[0].method.preset, "dense");
  options.preference = 0;
  EXPECT_EQ(rank_candidates(problem, {}, options)[0].method.preset, "topka");
}

TEST(Candidates, codes_finely_only_where_bytes_are_dear) {
  const Problem problem = problem_of(25e6, 0.01, 16);
  ChoiceOptions options;
  const Candidate slow = best_of({.preset = "circulant"}, problem, network(2e-5, 1e-8), options);
  EXPECT_EQ(slow.method.codec, (Codec{IndexCoding::elias_fano, ValueCoding::bf16}));
  options.coarsest = ValueCoding::fp32;
  const Candidate exact = best_of({.preset = "circulant"}, problem, network(2e-5, 1e-8), options);
  EXPECT_EQ(exact.method.codec, (Codec{IndexCoding::elias_fano, ValueCoding::fp32}));
  const Candidate fast = best_of({.preset = "circulant"}, problem, network(1e-7, 0), options);
  EXPECT_EQ(fast.method.codec, Codec{});
}

TEST(Candidates, prices_a_step_as_network_compute_and_inside) {
  const Problem problem = problem_of(1e6, 0.01, 16);
  const Profile profile;
  const Candidate c = price({.preset = "topka"}, problem, profile, {});
  const auto topka = make_allreduce(find_preset("topka"), {});
  const double exchange = seconds(topka->predict(problem).expected, profile.machine);
  EXPECT_DOUBLE_EQ(c.compute, 1e6 * profile.machine.sigma);
  EXPECT_DOUBLE_EQ(c.seconds, exchange + c.compute);
  EXPECT_EQ(c.inside, 0);
  // Its refresh, once in tau' steps, is part of the price.
  Problem refresh = problem;
  refresh.refresh = true;
  const auto oktopk = make_allreduce(find_preset("oktopk"), {});
  const double steady = seconds(oktopk->predict(problem).expected, profile.machine);
  const double full = seconds(oktopk->predict(refresh).expected, profile.machine);
  EXPECT_NEAR(price({.preset = "oktopk"}, problem, profile, {}).seconds, (31 * steady + full) / 32 + c.compute, 1e-12);
}

TEST(Candidates, sums_inside_nodes_first_where_the_inside_is_fast) {
  Profile profile;
  profile.ranks_per_host = 8;
  profile.inside = Machine{.alpha = 2e-6, .beta = 5e-12, .gamma = 3e-9, .delta = 1e-11};
  profile.machine.sigma = 1e-11;
  ChoiceOptions options{.groups = true};
  const Problem problem = problem_of(1e5, 0.01, 64);
  const Candidate c = rank_candidates(problem, profile, options).front();
  EXPECT_EQ(c.method.group, 8) << to_string(c.method);
  EXPECT_GT(c.inside, 0);
  options.groups = false;
  EXPECT_EQ(rank_candidates(problem, profile, options).front().method.group, 1);
}

TEST(Candidates, keeps_to_the_presets_it_is_given) {
  const auto all = rank_candidates(problem_of(1e6, 0.01, 8), {}, {.presets = {"oktopk", "dense"}});
  ASSERT_EQ(all.size(), 2U);
  EXPECT_NE(all[0].method.preset, all[1].method.preset);
  EXPECT_THROW(rank_candidates(problem_of(1e6, 0.01, 8), {}, {.presets = {"nonesuch"}}), UsageError);
}

TEST(Candidates, refuses_a_problem_that_cannot_be) {
  EXPECT_THROW(rank_candidates({.n = 10, .k = 11, .P = 2}, {}, {}), UsageError);
  EXPECT_THROW(rank_candidates({.n = 10, .k = 1, .P = 0}, {}, {}), UsageError);
  EXPECT_THROW(best_skips({.n = 10, .k = 1, .P = 0}, {}, {}), UsageError);
}

TEST(Candidates, says_a_method_in_words) {
  EXPECT_EQ(to_string(Method{.preset = "dense", .codec = {IndexCoding::coo32, ValueCoding::bf16}}), "dense bf16");
  EXPECT_EQ(to_string(Method{.preset = "circulant", .skips = "4,2,1", .group = 8}),
            "circulant coo32+fp32 skips 4,2,1 group 8");
  EXPECT_EQ(to_string(Method{.preset = "topka"}), "topka coo32+fp32");
}

const Problem kProblem{.n = 1e6, .k = 1e4, .P = 1};

double time_of(const Skips& skips, const Problem& problem, Codec codec, const Machine& machine) {
  const BlockTally tally;  // circulant's blocks carry tallies
  return seconds(SparseReduceScatter::predict(skips, problem, codec, {.tally = &tally}), machine);
}

// The least time of all possible skip lists.
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
  for (const int P : {2, 3, 5, 8, 24, 64, 100, 1024}) {
    Problem problem = kProblem;
    problem.P = P;
    const Skips few = best_skips(problem, {}, {.overhead = 1e-3});
    EXPECT_EQ(message_count(few), ceil_log2(P)) << to_string(few);
    // Every contribution goes straight to its owner.
    const Skips direct = best_skips(problem, {}, {.beta = 1e-9});
    EXPECT_EQ(direct, direct_skips(P)) << to_string(direct);
  }
}

}  // namespace
}  // namespace oktopk::candidates_test
