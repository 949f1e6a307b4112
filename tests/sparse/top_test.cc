// SPDX-License-Identifier: Apache-2.0
#include "oktopk/sparse/top.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/sparse.h"

namespace oktopk {
namespace {

// Larger magnitude first, then smaller index.
EntryList sorted_by_rank(EntryList entries) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::fabs(a.second) != std::fabs(b.second) ? std::fabs(a.second) > std::fabs(b.second)
                                                      : a.first < b.first;
  });
  return entries;
}

TEST(Top, kth_magnitude_counts_from_the_largest_and_ignores_signs) {
  const std::vector<float> values = {1, -5, 3, -3, 0.5F};
  EXPECT_EQ(kth_magnitude(values, 1), 5);
  EXPECT_EQ(kth_magnitude(values, 2), 3);
  EXPECT_EQ(kth_magnitude(values, 3), 3);
  EXPECT_EQ(kth_magnitude(values, 5), 0.5F);
}

TEST(Top, keep_largest_of_ties_takes_the_smaller_indices) {
  SparseVector v = make_sparse({{1, 2}, {3, -2}, {4, 5}, {7, 2}, {9, -2}});
  SparseVector dropped;
  keep_largest(v, 3, &dropped);
  EXPECT_EQ(list_of(v), (EntryList{{1, 2}, {3, -2}, {4, 5}}));
  EXPECT_EQ(list_of(dropped), (EntryList{{7, 2}, {9, -2}}));
}

TEST(Top, keep_largest_zero_drops_everything) {
  SparseVector v = make_sparse({{1, 2}, {3, -2}});
  SparseVector dropped;
  keep_largest(v, 0, &dropped);
  EXPECT_TRUE(v.empty());
  EXPECT_EQ(dropped.size(), 2u);
  keep_largest(v, 0, &dropped);
  EXPECT_EQ(dropped.size(), 2u);
}

TEST(Top, keep_largest_of_as_many_or_fewer_changes_nothing) {
  for (const std::size_t k : {2U, 3U, 1000U}) {
    SparseVector v = make_sparse({{1, 2}, {3, -2}});
    SparseVector dropped;
    keep_largest(v, k, &dropped);
    EXPECT_EQ(list_of(v), (EntryList{{1, 2}, {3, -2}}));
    EXPECT_TRUE(dropped.empty());
  }
}

TEST(Top, keep_largest_appends_to_dropped) {
  SparseVector v = make_sparse({{1, 2}, {3, 1}});
  SparseVector dropped = make_sparse({{9, 9}});
  keep_largest(v, 1, &dropped);
  EXPECT_EQ(list_of(dropped), (EntryList{{9, 9}, {3, 1}}));
}

TEST(Top, keep_largest_random_equals_a_full_sort) {
  Random random(2);
  for (int trial = 0; trial < 200; ++trial) {
    SparseVector v = random_sparse(random, 1 + random.below(60), 0, 1000);
    if (trial % 2 == 0)  // many ties
      for (float& x : v.val) x = std::copysign(std::ceil(std::fabs(x) * 4), x);
    const auto k = static_cast<std::ptrdiff_t>(random.below(v.size() + 1));
    EntryList order = sorted_by_rank(list_of(v));
    EntryList kept(order.begin(), order.begin() + k);
    EntryList rest(order.begin() + k, order.end());
    std::sort(kept.begin(), kept.end());
    std::sort(rest.begin(), rest.end());
    SparseVector dropped;
    keep_largest(v, static_cast<std::size_t>(k), &dropped);
    EXPECT_EQ(list_of(v), kept);
    EXPECT_EQ(list_of(dropped), rest);
  }
}

TEST(Top, keep_at_least_includes_the_threshold) {
  SparseVector v = make_sparse({{1, 2}, {3, -3}, {4, 1.99F}, {5, -2}});
  keep_at_least(v, 2);
  EXPECT_EQ(list_of(v), (EntryList{{1, 2}, {3, -3}, {5, -2}}));
  keep_at_least(v, 0);
  EXPECT_EQ(v.size(), 3u);
  keep_at_least(v, 100);
  EXPECT_TRUE(v.empty());
}

}  // namespace
}  // namespace oktopk
