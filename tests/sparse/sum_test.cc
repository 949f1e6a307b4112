// SPDX-License-Identifier: Apache-2.0
// Sums against std::map, at every level of vector instructions. Mistakes would hide where the walk
// in blocks of 8192 indices crosses a border, and where dense and scattered inputs part ways.
#include "oktopk/sparse/sum.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>

#include "oktopk/base/simd.h"
#include "tests/support/sparse.h"

namespace oktopk::sum_test {
namespace {

// At every level: all must agree.
EntryList sum_of(const std::vector<SparseVector>& parts, Range range) {
  const std::vector<CooView> views(parts.begin(), parts.end());
  SparseVector first;
  for (const SimdLevel level : simd_levels()) {
    const SimdLimit limit(level);
    SparseVector out = make_sparse({{123, 4}});  // must be replaced
    sum(views, range, out);
    EXPECT_TRUE(is_canonical(out));
    if (level == simd_levels().front()) first = out;
    EXPECT_EQ(list_of(out), list_of(first)) << to_string(level);
  }
  return list_of(first);
}

// The same where comparing lists would fail at NaN.
EntryList sum_of_nan(const std::vector<SparseVector>& parts, Range range) {
  const std::vector<CooView> views(parts.begin(), parts.end());
  EntryList first;
  for (const SimdLevel level : simd_levels()) {
    const SimdLimit limit(level);
    SparseVector out;
    sum(views, range, out);
    if (level == simd_levels().front()) first = list_of(out);
    EXPECT_EQ(out.size(), first.size()) << to_string(level);
  }
  return first;
}

EntryList oracle(const std::vector<SparseVector>& parts) {
  std::map<Index, float> total;
  for (const SparseVector& part : parts)
    for (const auto& [i, v] : list_of(part)) total[i] += v;
  EntryList out;
  for (const auto& [i, v] : total)
    if (v != 0) out.emplace_back(i, v);
  return out;
}

TEST(Sum, of_nothing_is_empty) {
  EXPECT_TRUE(sum_of({}, {0, 100}).empty());
  EXPECT_TRUE(sum_of({SparseVector{}, SparseVector{}}, {0, 100}).empty());
}

TEST(Sum, any_number_of_random_parts_equals_the_map) {
  Random random(1);
  for (std::size_t count = 1; count <= 9; ++count)
    for (const Index width : {10U, 8192U, 100000U, 3000000U}) {
      std::vector<SparseVector> parts;
      for (std::size_t p = 0; p < count; ++p)
        parts.push_back(random_sparse(random, random.below(std::min<Index>(width, 300)), 1000, 1000 + width));
      EXPECT_EQ(sum_of(parts, {1000, 1000 + width}), oracle(parts)) << count << " " << width;
    }
}

TEST(Sum, any_density_and_number_of_parts_equals_the_map) {
  Random random(2);
  for (const std::size_t count : {2U, 3U, 5U, 16U})
    for (const Index width : {1U, 7U, 64U, 513U, 9000U, 20000U})
      for (const Index sparsity : {1U, 2U, 30U, 1000U}) {
        std::vector<SparseVector> parts;
        for (std::size_t p = 0; p < count; ++p)
          parts.push_back(random_sparse(random, random.below(width / sparsity + 1), 77, 77 + width));
        ASSERT_EQ(sum_of(parts, {77, 77 + width}), oracle(parts)) << count << " " << width;
      }
}

TEST(Sum, two_parts_of_all_small_sizes_equal_the_map) {
  Random random(3);
  for (std::size_t a = 0; a <= 35; ++a)
    for (std::size_t b = 0; b <= 35; ++b)
      for (const Index width : {40U, 5000U}) {
        const std::vector<SparseVector> parts = {random_sparse(random, a, 0, width),
                                                 random_sparse(random, b, 0, width)};
        ASSERT_EQ(sum_of(parts, {0, width}), oracle(parts)) << a << " " << b;
      }
}

TEST(Sum, equal_supports_and_opposite_values_leave_nothing) {
  Random random(4);
  for (const Index width : {2000U, 3000000U}) {
    const SparseVector v = random_sparse(random, 1000, 0, width);
    SparseVector minus = v;
    for (float& x : minus.val) x = -x;
    EXPECT_TRUE(sum_of({v, minus}, {0, width}).empty());
    EXPECT_TRUE(sum_of({v, v, minus, minus}, {0, width}).empty());
    EXPECT_EQ(sum_of({v, minus, v}, {0, width}), list_of(v));
    EXPECT_EQ(sum_of({v, v, v}, {0, width}), oracle({v, v, v}));
  }
}

TEST(Sum, zeros_of_either_sign_are_left_out_and_nan_stays) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Index width : {12U, 1000000U}) {
    const SparseVector v = make_sparse({{1, 0.0F}, {2, -0.0F}, {3, nan}, {4, 1}});
    for (std::size_t count = 1; count <= 3; ++count) {
      const EntryList out = sum_of_nan(std::vector<SparseVector>(count, v), {0, width});
      ASSERT_EQ(out.size(), 2u);
      EXPECT_EQ(out[0].first, 3u);
      EXPECT_NE(out[0].second, out[0].second);
      EXPECT_EQ(out[1], (Entry{4, static_cast<float>(count)}));
    }
  }
}

TEST(Sum, thousands_of_tiny_parts_equal_the_map) {
  Random random(5);
  for (const Index width : {3000U, 0xffffffffU}) {
    std::vector<SparseVector> parts;
    for (int p = 0; p < 3000; ++p) parts.push_back(random_sparse(random, random.below(3), 0, width));
    EXPECT_EQ(sum_of(parts, {0, width}), oracle(parts)) << width;
  }
}

TEST(Sum, adds_in_the_order_of_the_parts) {
  const SparseVector large = make_sparse({{0, 1e8F}});
  const SparseVector one = make_sparse({{0, 1}});
  const SparseVector minus = make_sparse({{0, -1e8F}});
  EXPECT_TRUE(sum_of({large, one, minus}, {0, 1}).empty());
  EXPECT_EQ(sum_of({large, minus, one}, {0, 1}), (EntryList{{0, 1}}));
}

TEST(Sum, around_block_borders_nothing_is_lost_or_moved) {
  for (const Index begin : {0U, 1U, 100U, 8192U}) {
    const SparseVector a = make_sparse({{begin + 8190, 1}, {begin + 8191, 2}, {begin + 8192, 3}, {begin + 8193, 4}});
    const SparseVector b = make_sparse({{begin, 5}, {begin + 8191, 6}, {begin + 16384, 7}});
    EXPECT_EQ(sum_of({a, b}, {begin, begin + 20000}), oracle({a, b})) << begin;
  }
}

TEST(Sum, indices_at_the_end_of_32_bits_are_exact) {
  constexpr Index kLast = 0xfffffffeU;
  const SparseVector a = make_sparse({{0, 1}, {kLast - 8192, 1}, {kLast - 1, 2}, {kLast, 3}});
  const SparseVector b = make_sparse({{kLast - 8191, 1}, {kLast, 4}});
  EXPECT_EQ(sum_of({a, b}, {0, kLast + 1}), oracle({a, b}));
  Random random(7);
  const SparseVector dense = random_sparse(random, 7000, kLast - 9000, kLast + 1);
  EXPECT_EQ(sum_of({a, b, dense, dense}, {0, kLast + 1}), oracle({a, b, dense, dense}));
  EXPECT_EQ(sum_of({dense, dense, b}, {kLast - 9000, kLast + 1}), oracle({dense, dense, b}));
  const SparseVector tail = make_sparse({{kLast - 1, 2}, {kLast, 3}});
  EXPECT_EQ(sum_of({tail, tail}, {kLast - 10, kLast + 1}), oracle({tail, tail}));
}

// ---- Intersections and make_canonical.

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

TEST(SetOps, make_canonical_adds_in_the_order_given) {
  SparseVector v = make_sparse({{1, 1e8F}, {0xfffffffeU, 1}, {0, 1}, {1, -1e8F}, {1, 1}});
  RunScratch scratch;
  make_canonical(v, scratch);
  EXPECT_EQ(list_of(v), (EntryList{{0, 1}, {1, 1}, {0xfffffffeU, 1}}));
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
}  // namespace oktopk::sum_test
