// SPDX-License-Identifier: Apache-2.0
// Plans of buckets: small ones by hand, searched ones against all others.
#include "oktopk/reduce/fusion.h"

#include <gtest/gtest.h>

#include <numeric>

#include "oktopk/base/random.h"
#include "tests/support/message.h"

namespace oktopk::fusion_test {
namespace {

using Counts = std::vector<std::size_t>;

Counts counts_of(const std::vector<Bucket>& buckets) {
  Counts counts;
  for (const Bucket& bucket : buckets) counts.push_back(bucket.end - bucket.first);
  return counts;
}

FusionOptions policy(const std::string& name, std::size_t values = 1) {
  FusionOptions options;
  options.policy = find_fusion_policy(name);
  options.values = values;
  return options;
}

Counts plan(const std::vector<Index>& tensors, const FusionOptions& options) {
  return counts_of(plan_buckets(tensors, options, {}));
}

TEST(Fusion, names_are_found_and_others_listed) {
  for (const auto* name : {"whole", "tensor", "size", "search", "optimal"})
    EXPECT_EQ(to_string(find_fusion_policy(name)), name);
  EXPECT_NE(message_of([] { find_fusion_policy("some"); }).find("whole, tensor, size, search"), std::string::npos);
}

TEST(Fusion, plans_by_hand) {
  const std::vector<Index> tensors = {5, 1, 1, 3, 2};
  EXPECT_EQ(plan(tensors, policy("whole")), (Counts{5}));
  EXPECT_EQ(plan(tensors, policy("tensor")), (Counts{1, 1, 1, 1, 1}));
  EXPECT_EQ(plan(tensors, policy("size", 1)), (Counts{1, 1, 1, 1, 1}));
  EXPECT_EQ(plan(tensors, policy("size", 2)), (Counts{1, 1, 2, 1}));
  EXPECT_EQ(plan(tensors, policy("size", 4)), (Counts{2, 3}));
  EXPECT_EQ(plan(tensors, policy("size", 6)), (Counts{3, 2}));
  EXPECT_EQ(plan(tensors, policy("size", 7)), (Counts{4, 1}));
  EXPECT_EQ(plan(tensors, policy("size", 100)), (Counts{5}));
  EXPECT_EQ(plan({0, 4, 0, 0}, policy("size", 2)), (Counts{3, 1}));
}

TEST(Fusion, buckets_run_from_the_last_tensor_backwards) {
  const std::vector<Index> tensors = {5, 1, 1, 3, 2};
  const auto buckets = plan_buckets(tensors, policy("size", 4), {});
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[0], (Bucket{3, 5, {7, 12}}));
  EXPECT_EQ(buckets[1], (Bucket{0, 3, {0, 7}}));
}

TEST(Fusion, bad_input_is_refused) {
  const auto refusal = [](const std::vector<Index>& tensors, const FusionOptions& options) {
    return message_of([&] { plan(tensors, options); });
  };
  EXPECT_NE(refusal({}, policy("whole")).find("no tensors"), std::string::npos);
  EXPECT_NE(refusal({1}, policy("size", 0)).find("values = 0"), std::string::npos);
  const std::vector<Index> huge = {~Index{0}, 1};
  EXPECT_NE(refusal(huge, policy("whole")).find("4294967296"), std::string::npos);
  FusionOptions options = policy("search");
  options.tensor_seconds = {1, 2};
  const std::vector<Index> three = {1, 1, 1};
  EXPECT_NE(message_of([&] { fusion_model(three, {}, 4, options); }).find("2 backward times"), std::string::npos);
  options.tensor_seconds = {1, -2, 1};
  EXPECT_NE(message_of([&] { fusion_model(three, {}, 4, options); }).find("-2"), std::string::npos);
}

TEST(Fusion, shares_of_k_add_up_and_fit) {
  const std::vector<Index> tensors = {500, 3, 90, 1, 1, 405};
  for (const std::size_t k : {6, 10, 333, 1000}) {
    std::size_t sum = 0;
    std::size_t raised = 0;
    for (const Bucket& bucket : plan_buckets(tensors, policy("tensor"), {})) {
      const std::size_t share = share_of_k(k, 1000, bucket.range);
      EXPECT_GE(share, 1u);
      EXPECT_LE(share, bucket.range.width());
      sum += share;
      raised += bucket.range.width() * k < 1000 ? 1 : 0;
    }
    EXPECT_GE(sum, k);
    EXPECT_LE(sum, k + raised);
  }
  EXPECT_EQ(share_of_k(10, 1000, {0, 1000}), 10u);
  EXPECT_EQ(share_of_k(10, 1000, {7, 7}), 0u);
}

TEST(Fusion, iteration_by_hand) {
  // Exchange: 1 s and 1 s per value. Tensor 1 is ready at 2, tensor 0 at 2 + 4.
  const FusionModel model{{4, 2}, [](std::size_t values) { return 1.0 + static_cast<double>(values); }};
  const std::vector<Index> tensors = {1, 3};
  EXPECT_EQ(predicted_iteration(lay_out(tensors, {{2}}), model), 6 + 5);
  EXPECT_EQ(predicted_iteration(lay_out(tensors, {{1, 1}}), model), 6 + 2);
  const FusionModel fast{{1, 1}, model.exchange};
  // The second exchange waits for the first, not for its tensor.
  EXPECT_EQ(predicted_iteration(lay_out(tensors, {{1, 1}}), fast), 1 + 4 + 2);
}

FusionOptions machine(const std::string& name, const Machine& machine, double backward) {
  FusionOptions options = policy(name);
  options.machine = machine;
  options.backward_seconds = backward;
  return options;
}

struct Planned {
  std::size_t buckets = 0;
  double seconds = 0;
};

Planned planned(const FusionOptions& options, const std::string& preset) {
  const std::vector<Index> tensors(50, 100'000);
  ReducerOptions reducer;
  reducer.preset = preset;
  const FusionModel model = fusion_model(tensors, reducer, 8, options);
  const auto buckets = plan_buckets(tensors, options, model);
  return {buckets.size(), predicted_iteration(buckets, model)};
}

TEST(Fusion, dear_messages_fuse_all_and_free_ones_split) {
  for (const std::string name : {"search", "optimal"})
    for (const std::string preset : {"dense", "oktopk", "circulant"}) {
      EXPECT_EQ(planned(machine(name, {.alpha = 1e3, .beta = 1e-9}, 1.0), preset).buckets, 1u);
      // Nothing to hide behind: more buckets cannot pay.
      EXPECT_EQ(planned(machine(name, {.alpha = 1e-5, .beta = 1e-9}, 0.0), preset).buckets, 1u);
      // All plans are equal: the simplest.
      EXPECT_EQ(planned(machine(name, {}, 1.0), preset).buckets, 1u);
      // A network that needs about as long as the backward pass, and messages that cost nothing.
      const Machine slow{.alpha = 0, .beta = 1e-6};
      const double whole = planned(machine("whole", slow, 0.0), preset).seconds;
      const Planned split = planned(machine(name, slow, whole), preset);
      EXPECT_GT(split.buckets, 10u) << name << ' ' << preset;
      EXPECT_LT(split.seconds, 1.1 * whole) << name << ' ' << preset;
    }
}

struct RandomModel {
  std::vector<Index> tensors;
  FusionOptions options;
  FusionModel model;
};

RandomModel random_model(std::uint64_t seed, std::size_t most_tensors) {
  Random random(seed, 0, 0);
  RandomModel out;
  const std::size_t count = 2 + random.below(most_tensors - 1);
  for (std::size_t t = 0; t < count; ++t)
    out.tensors.push_back(static_cast<Index>(1 + random.below(std::uint64_t{1} << (4 + random.below(17)))));
  out.options.machine.alpha = 1e-6 * static_cast<double>(1 + random.below(100));
  out.options.machine.beta = 1e-10 * static_cast<double>(1 + random.below(100));
  for (std::size_t t = 0; t < count; ++t)
    out.options.tensor_seconds.push_back(1e-6 * static_cast<double>(random.below(2000)));
  ReducerOptions reducer;
  reducer.preset = seed % 2 == 0 ? "dense" : "circulant";
  out.model = fusion_model(out.tensors, reducer, 2 + static_cast<int>(random.below(30)), out.options);
  return out;
}

double seconds_of(RandomModel& m, FusionPolicy policy, std::size_t values = 1) {
  m.options.policy = policy;
  m.options.values = values;
  return predicted_iteration(plan_buckets(m.tensors, m.options, m.model), m.model);
}

// Every buffer size that makes a difference: the sizes of all runs of tensors.
double best_size(RandomModel& m) {
  double best = seconds_of(m, FusionPolicy::whole);
  for (std::size_t first = 0; first < m.tensors.size(); ++first)
    for (std::size_t end = first + 1; end <= m.tensors.size(); ++end) {
      const auto values = std::accumulate(m.tensors.begin() + static_cast<std::ptrdiff_t>(first),
                                          m.tensors.begin() + static_cast<std::ptrdiff_t>(end), std::size_t{0});
      best = std::min(best, seconds_of(m, FusionPolicy::size, values));
    }
  return best;
}

TEST(Fusion, search_is_within_a_tenth_of_the_best_size) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    RandomModel m = random_model(seed, 30);
    const double found = seconds_of(m, FusionPolicy::search);
    EXPECT_LE(found, 1.1 * best_size(m)) << "seed " << seed;
    EXPECT_LE(found, seconds_of(m, FusionPolicy::whole));
    EXPECT_LE(found, seconds_of(m, FusionPolicy::tensor));
    EXPECT_LE(seconds_of(m, FusionPolicy::optimal), found * (1 + 1e-12));
  }
}

// All 2^(tensors - 1) plans.
double best_of_all(const RandomModel& m) {
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t cuts = 0; cuts < std::size_t{1} << (m.tensors.size() - 1); ++cuts) {
    FusionPlan plan{{1}};
    for (std::size_t t = 0; t + 1 < m.tensors.size(); ++t)
      if (((cuts >> t) & 1U) != 0)
        plan.counts.push_back(1);
      else
        ++plan.counts.back();
    best = std::min(best, predicted_iteration(lay_out(m.tensors, plan), m.model));
  }
  return best;
}

TEST(Fusion, optimal_is_the_best_of_all_plans) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    RandomModel m = random_model(seed, 8);
    const double best = best_of_all(m);
    EXPECT_NEAR(seconds_of(m, FusionPolicy::optimal), best, 1e-9 * best) << "seed " << seed;
  }
}

}  // namespace
}  // namespace oktopk::fusion_test
