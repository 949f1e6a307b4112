// SPDX-License-Identifier: Apache-2.0
#include "oktopk/select/reused.h"

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
    ReusedSelector selector(tau_prime);
    float threshold = 0;
    for (std::uint64_t step = 0; step < 12; ++step) {
      std::vector<float> acc(2000, 0.0F);
      const std::vector<float> gradient =
          normal_values(step, 1 + 0.05 * static_cast<double>(step % 3));
      SparseVector out, expected;
      selector.select(*device, {acc, gradient}, k, out);
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
  ReusedSelector selector(10);
  SparseVector out, expected;
  std::vector<float> x = normal_values(0, 1);
  selector.select(*device, {.acc = x}, 50, out);
  x = normal_values(1, 100);
  selector.select(*device, {.acc = x}, 50, out);
  select_exact(*device, {.acc = x}, 100, expected);
  EXPECT_EQ(list_of(out), list_of(expected));
}

TEST(ReusedSelector, select_after_the_values_shrank_gives_few_until_the_next_evaluation) {
  const auto device = make_cpu_device();
  ReusedSelector selector(3);
  SparseVector out;
  std::vector<std::size_t> sizes;
  for (std::uint64_t step = 0; step < 4; ++step) {
    std::vector<float> x = normal_values(step, step == 0 ? 1 : 1e-3);
    selector.select(*device, {.acc = x}, 50, out);
    sizes.push_back(out.size());
  }
  EXPECT_EQ(sizes, (std::vector<std::size_t>{50, 0, 0, 50}));
}

TEST(ReusedSelector, select_with_another_k_evaluates_anew_and_keeps_its_turn) {
  const auto device = make_cpu_device();
  ReusedSelector selector(4);
  std::vector<std::size_t> sizes;
  for (const std::size_t k : {50U, 50U, 20U, 20U, 20U, 80U, 80U, 80U, 80U}) {
    const std::uint64_t step = sizes.size();
    // Steps of the same k have more and more above the threshold, unless it is evaluated.
    std::vector<float> x = normal_values(0, 1 + 0.05 * static_cast<double>(step));
    SparseVector out;
    selector.select(*device, {.acc = x}, k, out);
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

TEST(ReusedSelector, interval_below_one_is_refused) {
  EXPECT_THROW(ReusedSelector(0), UsageError);
  EXPECT_THROW(ReusedSelector(-1), UsageError);
}

}  // namespace
}  // namespace oktopk::reused_test
