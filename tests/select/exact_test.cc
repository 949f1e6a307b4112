// SPDX-License-Identifier: Apache-2.0
// The exact selection against a full sort, ties included.
#include "oktopk/select/selector.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/sparse.h"

namespace oktopk::exact_test {
namespace {

EntryList sort_oracle(std::span<const float> x, std::size_t k) {
  EntryList all;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (x[i] != 0) all.emplace_back(static_cast<Index>(i), x[i]);
  std::stable_sort(all.begin(), all.end(),
                   [](const Entry& a, const Entry& b) { return std::fabs(a.second) > std::fabs(b.second); });
  all.resize(std::min(k, all.size()));
  std::sort(all.begin(), all.end());
  return all;
}

EntryList select(std::vector<float> acc, std::size_t k) {
  const auto selector = make_exact({});
  SparseVector out;
  selector->select(*make_cpu_device(), {.acc = acc}, k, out);
  return list_of(out);
}

TEST(ExactSelector, select_of_few_values_equals_a_sort) {
  Random random(1);
  std::vector<std::vector<float>> inputs;
  for (const std::size_t n : {1U, 10U, 1000U, 20000U}) {
    auto& x = inputs.emplace_back(n);
    for (float& v : x) v = static_cast<float>(random.normal());
  }
  for (int trial = 0; trial < 50; ++trial) {  // ties: the smaller indices
    auto& x = inputs.emplace_back(200);
    for (float& v : x) v = static_cast<float>(random.below(5)) - 2.0F;
  }
  auto& one_bin = inputs.emplace_back(1000);
  for (std::size_t i = 0; i < 1000; ++i) one_bin[i] = 1.0F + static_cast<float>((i * 7919) % 1000) * 1e-5F;
  auto& scales = inputs.emplace_back(std::vector<float>{std::numeric_limits<float>::max()});
  for (int e = -149; e < 128; ++e) scales.push_back(std::ldexp(e % 2 == 0 ? 1.0F : -1.0F, e));
  for (const auto& x : inputs)
    for (const std::size_t k : {std::size_t{1}, (x.size() + 9) / 10, x.size() / 3 + 1, (x.size() + 1) / 2, x.size()})
      EXPECT_EQ(select(x, k), sort_oracle(x, k)) << x.size() << " " << k;
}

TEST(ExactSelector, select_with_fewer_values_than_k_takes_all) {
  std::vector<float> x(100, 0.0F);
  x[3] = 1e-45F;
  x[50] = -2;
  EXPECT_EQ(select(x, 10), (EntryList{{3, 1e-45F}, {50, -2}}));
}

// Data that a sample says little, or the wrong thing, about.
enum class Hard { sorted, reversed, equal, mostly_zero, hot_layer, hot_column, spikes, tied };

float hard_value(Hard kind, std::size_t i, std::size_t n, Random& random) {
  const auto z = static_cast<float>(random.normal());
  switch (kind) {
    case Hard::sorted:
      return static_cast<float>(i);
    case Hard::reversed:
      return -static_cast<float>(n - i);
    case Hard::equal:
      return z < 0 ? -0.5F : 0.5F;
    case Hard::mostly_zero:
      return random.below(500) == 0 ? z : 0.0F;
    case Hard::hot_layer:
      return i / 300 == 77 ? 1e6F * z : z;
    case Hard::hot_column:
      return i % 1024 == 600 ? 1e3F * z : z;
    case Hard::spikes:  // between the clusters of a sample of 61: fewer than k reach the bound
      return i % 983 == 500 ? 1e6F * z : 1e-3F * z;
    case Hard::tied:
      return std::round(z);
  }
  return 0;
}

TEST(ExactSelector, select_of_hard_data_equals_a_sort) {
  const std::size_t n = 60000;
  for (const Hard kind : {Hard::sorted, Hard::reversed, Hard::equal, Hard::mostly_zero, Hard::hot_layer,
                          Hard::hot_column, Hard::spikes, Hard::tied}) {
    Random random(3);
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = hard_value(kind, i, n, random);
    for (const std::size_t k : {1U, 30U, 60U, 600U, 6000U, 20000U})
      EXPECT_EQ(select(x, k), sort_oracle(x, k)) << static_cast<int>(kind) << " " << k;
  }
}

// A value at only one place of 2^16: whatever the sample sees, the bound is too high or too low.
TEST(ExactSelector, select_of_one_large_block_equals_a_sort) {
  for (std::size_t begin = 0; begin < 60000; begin += 7001) {
    std::vector<float> x(70000);
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = i >= begin && i < begin + 5000 ? 1.0F + static_cast<float>(i) : 1e-3F;
    for (const std::size_t k : {100U, 4999U, 5000U, 5001U})
      EXPECT_EQ(select(x, k), sort_oracle(x, k)) << begin << " " << k;
  }
}

TEST(ExactSelector, select_folds_in_the_gradient_and_clears_on_every_way) {
  Random random(4);
  for (const std::size_t n : {1000U, 50000U})
    for (const std::size_t k : {n / 100, n / 3}) {
      std::vector<float> acc(n), gradient(n);
      for (float& v : acc) v = static_cast<float>(random.normal());
      for (float& v : gradient) v = static_cast<float>(random.normal());
      std::vector<Index> cleared;
      for (Index i = 0; i < n; i += 1 + static_cast<Index>(random.below(30))) cleared.push_back(i);
      std::vector<float> expected = acc;
      for (const Index i : cleared) expected[i] = 0;
      for (std::size_t i = 0; i < n; ++i) expected[i] += 0.5F * gradient[i];
      SparseVector out;
      const auto selector = make_exact({});
      selector->select(*make_cpu_device(), {acc, gradient, 0.5F, cleared}, k, out);
      EXPECT_EQ(acc, expected);
      EXPECT_EQ(list_of(out), sort_oracle(expected, k)) << n << " " << k;
    }
}

}  // namespace
}  // namespace oktopk::exact_test
