// SPDX-License-Identifier: Apache-2.0
// The exact selection against a full sort, ties included.
#include "oktopk/select/exact.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/sparse.h"

namespace oktopk {
namespace {

EntryList sort_oracle(std::span<const float> x, std::size_t k) {
  EntryList all;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (x[i] != 0) all.emplace_back(static_cast<Index>(i), x[i]);
  std::stable_sort(all.begin(), all.end(), [](const Entry& a, const Entry& b) {
    return std::fabs(a.second) > std::fabs(b.second);
  });
  all.resize(std::min(k, all.size()));
  std::sort(all.begin(), all.end());
  return all;
}

EntryList select(std::vector<float> acc, std::size_t k) {
  ExactSelector selector;
  SparseVector out;
  selector.select(*make_cpu_device(), {.acc = acc}, k, out);
  return list_of(out);
}

TEST(ExactSelector, select_normal_values_equals_a_sort) {
  Random random(1);
  for (const std::size_t n : {1U, 10U, 1000U, 20000U}) {
    std::vector<float> x(n);
    for (float& v : x) v = static_cast<float>(random.normal());
    for (const std::size_t k : {std::size_t{1}, (n + 9) / 10, (n + 1) / 2, n})
      EXPECT_EQ(select(x, k), sort_oracle(x, k)) << n << " " << k;
  }
}

TEST(ExactSelector, select_ties_takes_the_smaller_indices) {
  Random random(2);
  for (int trial = 0; trial < 100; ++trial) {
    std::vector<float> x(200);
    for (float& v : x) v = static_cast<float>(random.below(5)) - 2.0F;
    const std::size_t k = 1 + random.below(200);
    EXPECT_EQ(select(x, k), sort_oracle(x, k)) << k;
  }
}

TEST(ExactSelector, select_values_in_one_bin_still_orders_them) {
  std::vector<float> x(1000);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = 1.0F + static_cast<float>((i * 7919) % 1000) * 1e-5F;
  EXPECT_EQ(select(x, 37), sort_oracle(x, 37));
}

TEST(ExactSelector, select_over_all_scales_equals_a_sort) {
  std::vector<float> x;
  for (int e = -149; e < 128; ++e) x.push_back(std::ldexp(e % 2 == 0 ? 1.0F : -1.0F, e));
  x.push_back(std::numeric_limits<float>::max());
  for (std::size_t k = 1; k <= x.size(); k += 13) EXPECT_EQ(select(x, k), sort_oracle(x, k));
}

TEST(ExactSelector, select_with_fewer_values_than_k_takes_all) {
  std::vector<float> x(100, 0.0F);
  x[3] = 1e-45F;
  x[50] = -2;
  EXPECT_EQ(select(x, 10), (EntryList{{3, 1e-45F}, {50, -2}}));
}

}  // namespace
}  // namespace oktopk
