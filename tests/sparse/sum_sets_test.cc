// SPDX-License-Identifier: Apache-2.0
// Intersections and make_canonical of sum.h.
#include "oktopk/sparse/sum.h"

#include <gtest/gtest.h>

#include <set>

#include "oktopk/base/simd.h"
#include "tests/support/sparse.h"

namespace oktopk::sum_sets_test {
namespace {

TEST(SetOps, intersect_takes_values_of_the_first) {
  const SparseVector a = make_sparse({{1, 10}, {4, 40}, {6, 60}, {9, 90}});
  const std::vector<Index> indices = {0, 4, 5, 9, 12};
  SparseVector out = make_sparse({{77, 7}});  // must be replaced
  intersect(a, indices, out);
  EXPECT_EQ(list_of(out), (EntryList{{4, 40}, {9, 90}}));
}

TEST(SetOps, intersect_with_nothing_is_empty) {
  SparseVector out;
  intersect(make_sparse({{1, 10}}), {}, out);
  EXPECT_TRUE(out.empty());
  intersect(SparseVector{}, std::vector<Index>{1}, out);
  EXPECT_TRUE(out.empty());
}

EntryList members_of(const SparseVector& a, std::span<const Index> indices) {
  const std::set<Index> members(indices.begin(), indices.end());
  EntryList out;
  for (const Entry& entry : list_of(a))
    if (members.contains(entry.first)) out.push_back(entry);
  return out;
}

void expect_intersection(const SparseVector& a, std::span<const Index> indices) {
  for (const SimdLevel level : simd_levels()) {
    const SimdLimit limit(level);
    SparseVector out = make_sparse({{77, 7}});
    intersect(a, indices, out);
    ASSERT_EQ(list_of(out), members_of(a, indices)) << to_string(level) << " " << a.size() << " " << indices.size();
  }
}

TEST(SetOps, intersect_of_all_small_sizes_equals_membership) {
  Random random(3);
  for (std::size_t a = 0; a <= 40; ++a)
    for (std::size_t b = 0; b <= 40; ++b)
      expect_intersection(random_sparse(random, a, 0, 60), random_sparse(random, b, 0, 60).idx);
}

TEST(SetOps, intersect_of_any_supports_equals_membership) {
  Random random(4);
  const SparseVector all = random_sparse(random, 1000, 0, 1000);
  const SparseVector half = random_sparse(random, 500, 0, 1000);
  const SparseVector few = random_sparse(random, 30, 0, 1000);
  const SparseVector low = random_sparse(random, 100, 0, 150);
  const SparseVector high = random_sparse(random, 100, 0xffffff00U, 0xffffffffU);
  for (const SparseVector& a : {all, half, few, low, high})
    for (const SparseVector& b : {all, half, few, low, high}) expect_intersection(a, b.idx);
}

TEST(SetOps, intersect_with_repeated_indices_takes_an_entry_once) {
  Random random(5);
  for (int trial = 0; trial < 100; ++trial) {
    std::vector<Index> indices;
    Index i = 0;
    for (std::uint64_t count = random.below(90); count != 0; --count)
      indices.push_back(i += random.below(8) == 0 ? 3 : 0);
    expect_intersection(random_sparse(random, random.below(40), 0, 60), indices);
  }
}

TEST(SetOps, intersect_again_into_the_same_memory_does_not_move_it) {
  Random random(6);
  const SparseVector a = random_sparse(random, 400, 0, 1000);
  SparseVector out;
  intersect(a, a.idx, out);
  const Index* const memory = out.idx.data();
  intersect(a, a.idx, out);
  EXPECT_EQ(out.idx.data(), memory);
  EXPECT_EQ(list_of(out), list_of(a));
}

TEST(SetOps, make_canonical_sorts_and_adds_equal_indices) {
  SparseVector v = make_sparse({{5, 1}, {2, 2}, {5, 3}, {0xfffffffeU, 1}, {2, 4}, {5, 5}});
  RunScratch scratch;
  make_canonical(v, scratch);
  EXPECT_EQ(list_of(v), (EntryList{{2, 6}, {5, 9}, {0xfffffffeU, 1}}));
}

TEST(SetOps, make_canonical_adds_in_the_order_given) {
  SparseVector v = make_sparse({{1, 1e8F}, {0, 1}, {1, -1e8F}, {1, 1}});
  RunScratch scratch;
  make_canonical(v, scratch);
  EXPECT_EQ(list_of(v), (EntryList{{0, 1}, {1, 1}}));
}

TEST(SetOps, make_canonical_of_any_runs_equals_a_stable_sort) {
  Random random(5);
  RunScratch scratch;
  for (int trial = 0; trial < 200; ++trial) {
    SparseVector v;
    EntryList expected;
    for (std::uint64_t i = 0, count = random.below(60); i < count; ++i) {
      const auto index = static_cast<Index>(trial % 2 == 0 ? random.below(20) : i % 7 + i);
      const auto value = static_cast<float>(1 + random.below(100));
      v.push_back(index, value);
      expected.emplace_back(index, value);
    }
    std::stable_sort(expected.begin(), expected.end(),
                     [](const Entry& a, const Entry& b) { return a.first < b.first; });
    EntryList summed;
    for (const auto& [index, value] : expected) {
      if (summed.empty() || summed.back().first != index) {
        summed.emplace_back(index, value);
      } else {
        summed.back().second += value;
      }
    }
    make_canonical(v, scratch);
    ASSERT_EQ(list_of(v), summed) << "trial " << trial;
  }
}

TEST(SetOps, make_canonical_of_canonical_changes_nothing) {
  SparseVector v = make_sparse({{1, 1}, {2, 0}, {7, 3}});
  RunScratch scratch;
  make_canonical(v, scratch);
  EXPECT_EQ(list_of(v), (EntryList{{1, 1}, {2, 0}, {7, 3}}));
}

}  // namespace
}  // namespace oktopk::sum_sets_test
