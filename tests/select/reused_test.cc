// SPDX-License-Identifier: Apache-2.0
#include "oktopk/select/selector.h"

#include <gtest/gtest.h>

#include <cmath>

#include "oktopk/base/error.h"
#include "tests/support/sparse.h"

namespace oktopk::reused_test {
namespace {

std::vector<float> normal_values(std::uint64_t step, double scale) {
  Random random(4, step);
  std::vector<float> x(2000);
  for (float& v : x) v = static_cast<float>(scale * random.normal());
  return x;
}

float smallest(const SparseVector& v) {
  float least = std::fabs(v.val[0]);
  for (const float x : v.val) least = std::min(least, std::fabs(x));
  return least;
}

TEST(ReusedSelector, select_is_exact_every_tau_prime_and_reuses_the_threshold_between) {
  const auto device = make_cpu_device();
  constexpr std::size_t k = 100;
  for (const int tau_prime : {1, 2, 5}) {
    const auto selector = make_reused({.tau_prime = tau_prime});
    float threshold = 0;
    for (std::uint64_t step = 0; step < 12; ++step) {
      std::vector<float> acc(2000, 0.0F);
      const std::vector<float> gradient = normal_values(step, 1 + 0.05 * static_cast<double>(step % 3));
      SparseVector out, expected;
      selector->select(*device, {acc, gradient}, k, out);
      std::vector<float> x = gradient;
      if (step % static_cast<std::uint64_t>(tau_prime) == 0) {
        select_exact(*device, {.acc = x}, k, expected);
        threshold = smallest(expected);
        EXPECT_EQ(out.size(), k);
      } else {
        device->select_at_least(x, 0, threshold, expected);
        ASSERT_LE(expected.size(), 2 * k);
      }
      EXPECT_EQ(list_of(out), list_of(expected)) << "step " << step << ", tau' " << tau_prime;
    }
  }
}

TEST(ReusedSelector, select_that_lets_too_many_through_is_trimmed_to_the_largest_2k) {
  const auto device = make_cpu_device();
  const auto selector = make_reused({.tau_prime = 10});
  SparseVector out, expected;
  std::vector<float> x = normal_values(0, 1);
  selector->select(*device, {.acc = x}, 50, out);
  x = normal_values(1, 100);
  selector->select(*device, {.acc = x}, 50, out);
  select_exact(*device, {.acc = x}, 100, expected);
  EXPECT_EQ(list_of(out), list_of(expected));
}

TEST(ReusedSelector, select_after_the_values_shrank_gives_few_until_the_next_evaluation) {
  const auto device = make_cpu_device();
  const auto selector = make_reused({.tau_prime = 3});
  SparseVector out;
  std::vector<std::size_t> sizes;
  for (std::uint64_t step = 0; step < 4; ++step) {
    std::vector<float> x = normal_values(step, step == 0 ? 1 : 1e-3);
    selector->select(*device, {.acc = x}, 50, out);
    sizes.push_back(out.size());
  }
  EXPECT_EQ(sizes, (std::vector<std::size_t>{50, 0, 0, 50}));
}

TEST(ReusedSelector, select_with_another_k_evaluates_anew_and_keeps_its_turn) {
  const auto device = make_cpu_device();
  const auto selector = make_reused({.tau_prime = 4});
  std::vector<std::size_t> sizes;
  for (const std::size_t k : {50U, 50U, 20U, 20U, 20U, 80U, 80U, 80U, 80U}) {
    const std::uint64_t step = sizes.size();
    // Steps of the same k have more and more above the threshold, unless it is evaluated.
    std::vector<float> x = normal_values(0, 1 + 0.05 * static_cast<double>(step));
    SparseVector out;
    selector->select(*device, {.acc = x}, k, out);
    sizes.push_back(out.size());
  }
  const auto is_exact = [&](std::size_t step, std::size_t k) { return sizes[step] == k; };
  EXPECT_TRUE(is_exact(0, 50));
  EXPECT_FALSE(is_exact(1, 50));
  EXPECT_TRUE(is_exact(2, 20));  // another k
  EXPECT_FALSE(is_exact(3, 20));
  EXPECT_TRUE(is_exact(4, 20));  // its turn
  EXPECT_TRUE(is_exact(5, 80));  // another k
  EXPECT_FALSE(is_exact(6, 80));
  EXPECT_FALSE(is_exact(7, 80));
  EXPECT_TRUE(is_exact(8, 80));  // its turn
}

// 10,000 magnitudes 1/10000 .. 1: selecting by a threshold t gives 10,000 (1 - t) or one more.
std::vector<float> ramp(double scale) {
  std::vector<float> x(10000);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(scale * static_cast<double>(i + 1) / 10000);
  return x;
}

std::size_t select_ramp(Selector& selector, std::size_t k, double scale) {
  std::vector<float> x = ramp(scale);
  SparseVector out;
  selector.select(*make_cpu_device(), {.acc = x}, k, out);
  return out.size();
}

TEST(ReusedSelector, select_that_follows_counts_moves_by_12_in_1000_beyond_its_limits) {
  constexpr std::size_t k = 1000;  // the threshold is 0.9001
  const auto near = [](std::size_t is, double should) { EXPECT_NEAR(static_cast<double>(is), should, 3); };
  const auto low = make_reused({.tau_prime = 100, .follows_counts = true});
  EXPECT_EQ(select_ramp(*low, k, 1), k);
  near(select_ramp(*low, k, 0.95), 10000 * (1 - 0.9001 / 0.95));          // 525 < 2k/3
  near(select_ramp(*low, k, 0.95), 10000 * (1 - 0.9001 / 1.012 / 0.95));  // lower by 1.2%
  const auto calm = make_reused({.tau_prime = 100, .follows_counts = true});
  EXPECT_EQ(select_ramp(*calm, k, 1), k);
  near(select_ramp(*calm, k, 1.02), 10000 * (1 - 0.9001 / 1.02));  // 1175 < 5k/4
  near(select_ramp(*calm, k, 1), k);
  const auto high = make_reused({.tau_prime = 100, .follows_counts = true});
  EXPECT_EQ(select_ramp(*high, k, 1), k);
  near(select_ramp(*high, k, 1.035), 10000 * (1 - 0.9001 / 1.035));  // 1303: over 5k/4, below 4k/3
  near(select_ramp(*high, k, 1.035), 10000 * (1 - 0.9001 * 1.012 / 1.035));
}

TEST(ReusedSelector, select_that_follows_counts_raises_up_to_five_times_in_the_same_step) {
  constexpr std::size_t k = 1000;
  const auto guarded = make_reused({.tau_prime = 100, .follows_counts = true});
  EXPECT_EQ(select_ramp(*guarded, k, 1), k);
  // 1.08: 1,666 entries; one correction of 1.2% and one of 3% leave at most 4k/3.
  EXPECT_NEAR(static_cast<double>(select_ramp(*guarded, k, 1.08)), 10000 * (1 - 0.9001 * 1.012 * 1.03 / 1.08), 3);
  const auto plain = make_reused({.tau_prime = 100});
  EXPECT_EQ(select_ramp(*plain, k, 1), k);
  EXPECT_NEAR(static_cast<double>(select_ramp(*plain, k, 1.08)), 10000 * (1 - 0.9001 / 1.08), 3);
}

TEST(ReusedSelector, select_of_fewer_than_k_evaluates_until_there_are_enough) {
  const auto device = make_cpu_device();
  for (const bool follows_counts : {false, true}) {
    const auto selector = make_reused({.tau_prime = 32, .follows_counts = follows_counts});
    SparseVector out;
    for (const std::size_t some : {0U, 10U, 49U, 300U}) {
      std::vector<float> x = normal_values(some, 1);
      std::fill(x.begin() + static_cast<std::ptrdiff_t>(some), x.end(), 0.0F);
      selector->select(*device, {.acc = x}, 50, out);
      EXPECT_EQ(out.size(), std::min<std::size_t>(some, 50));
    }
  }
}

// A selection is O(k): the memory of n entries that a threshold once let through is not kept.
TEST(ReusedSelector, select_gives_back_the_memory_of_a_threshold_that_was_far_too_low) {
  const auto device = make_cpu_device();
  constexpr std::size_t n = 400000;
  constexpr std::size_t k = 1000;
  const auto selector = make_reused({.tau_prime = 32});
  SparseVector out;
  for (const float scale : {1e-6F, 1.0F}) {
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = scale * static_cast<float>(i + 1);
    selector->select(*device, {.acc = x}, k, out);
  }
  EXPECT_EQ(out.size(), 2 * k);
  EXPECT_LE(out.idx.capacity(), std::size_t{1} << 16U);
  EXPECT_LE(out.val.capacity(), std::size_t{1} << 16U);
}

TEST(ReusedSelector, interval_below_one_is_refused) {
  EXPECT_THROW(make_reused({.tau_prime = 0}), UsageError);
  EXPECT_THROW(make_reused({.tau_prime = -1}), UsageError);
}

}  // namespace
}  // namespace oktopk::reused_test
