// SPDX-License-Identifier: Apache-2.0
#include "oktopk/select/selector.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "oktopk/sparse/cuts.h"
#include "tests/support/sparse.h"

namespace oktopk::quota_test {
namespace {

std::vector<float> normal_values(std::size_t n) {
  Random random(3, n);
  std::vector<float> x(n);
  for (float& v : x) v = static_cast<float>(random.normal());
  return x;
}

std::vector<std::size_t> counts(CooView v, std::size_t n, int P) {
  const Cuts cuts = equal_cuts(static_cast<Index>(n), P);
  std::vector<std::size_t> out;
  for (int r = 0; r < P; ++r) out.push_back(part(v, region(cuts, r)).size());
  return out;
}

TEST(QuotaSelector, select_takes_k_over_P_of_every_region) {
  for (const int P : {1, 2, 3, 5, 8}) {
    const std::size_t k = 10 * static_cast<std::size_t>(P);
    std::vector<float> x = normal_values(1000);
    for (std::size_t i = 0; i < 100; ++i) x[i] *= 1000;  // a hot region gets no more
    const auto selector = make_quota({.P = P});
    SparseVector out;
    for (int step = 0; step < 3; ++step) {
      selector->select(*make_cpu_device(), {.acc = x}, k, out);
      EXPECT_EQ(counts(out, 1000, P), std::vector<std::size_t>(static_cast<std::size_t>(P), 10));
    }
  }
}

TEST(QuotaSelector, select_takes_the_largest_of_a_region) {
  std::vector<float> x(20, 0.5F);
  x[3] = -4;
  x[7] = 3;
  x[15] = 0.6F;
  const auto selector = make_quota({.P = 2});
  SparseVector out;
  selector->select(*make_cpu_device(), {.acc = x}, 4, out);
  EXPECT_EQ(list_of(out), (EntryList{{3, -4}, {7, 3}, {10, 0.5F}, {15, 0.6F}}));
}

TEST(QuotaSelector, select_k_that_P_does_not_divide_gives_k_and_evens_out_in_P_steps) {
  for (const auto& [P, k] : {std::pair<int, std::size_t>{5, 13}, {7, 1}, {7, 2}, {7, 3}, {7, 6}}) {
    const auto regions = static_cast<std::size_t>(P);
    std::vector<float> x = normal_values(140 * regions);
    const auto selector = make_quota({.P = P});
    std::vector<std::size_t> totals(regions, 0);
    SparseVector out;
    for (int step = 0; step < P; ++step) {
      selector->select(*make_cpu_device(), {.acc = x}, k, out);
      EXPECT_EQ(out.size(), k);
      const auto now = counts(out, x.size(), P);
      for (std::size_t r = 0; r < regions; ++r) {
        EXPECT_GE(now[r], k / regions);
        EXPECT_LE(now[r], k / regions + 1);
        totals[r] += now[r];
      }
    }
    EXPECT_EQ(totals, std::vector<std::size_t>(regions, k));
  }
}

TEST(QuotaSelector, select_n_below_P_reaches_every_entry_in_time) {
  std::vector<float> x = {1, 2, 3};
  const auto selector = make_quota({.P = 8});
  std::set<Index> seen;
  SparseVector out;
  for (int step = 0; step < 8; ++step) {
    selector->select(*make_cpu_device(), {.acc = x}, 1, out);
    EXPECT_LE(out.size(), 1u);
    seen.insert(out.idx.begin(), out.idx.end());
  }
  EXPECT_EQ(seen, (std::set<Index>{0, 1, 2}));
}

}  // namespace
}  // namespace oktopk::quota_test
