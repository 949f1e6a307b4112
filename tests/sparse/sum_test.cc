// SPDX-License-Identifier: Apache-2.0
// Sums against std::map; the walk in blocks of 8192 indices is where mistakes would hide.
#include "oktopk/sparse/sum.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/support/sparse.h"

namespace oktopk {
namespace {

EntryList sum_of(const std::vector<SparseVector>& parts, Range range) {
  const std::vector<CooView> views(parts.begin(), parts.end());
  SparseVector out = make_sparse({{123, 4}});  // must be replaced
  sum(views, range, out);
  EXPECT_TRUE(is_canonical(out));
  return list_of(out);
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

TEST(Sum, of_one_part_is_the_part) {
  const SparseVector v = make_sparse({{3, 1}, {99, -2}});
  EXPECT_EQ(sum_of({v}, {0, 100}), list_of(v));
}

TEST(Sum, any_number_of_random_parts_equals_the_map) {
  Random random(1);
  for (std::size_t count = 1; count <= 9; ++count)
    for (const Index width : {10U, 8192U, 100000U, 3000000U}) {
      std::vector<SparseVector> parts;
      for (std::size_t p = 0; p < count; ++p)
        parts.push_back(
            random_sparse(random, random.below(std::min<Index>(width, 300)), 1000, 1000 + width));
      EXPECT_EQ(sum_of(parts, {1000, 1000 + width}), oracle(parts)) << count << " " << width;
    }
}

TEST(Sum, entries_that_cancel_are_left_out) {
  const auto sums = sum_of({make_sparse({{1, 2}, {5, 1}}), make_sparse({{1, -1}, {5, -1}}),
                            make_sparse({{1, -1}, {6, 3}})},
                           {0, 10});
  EXPECT_EQ(sums, (EntryList{{6, 3}}));
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
    const SparseVector a =
        make_sparse({{begin + 8190, 1}, {begin + 8191, 2}, {begin + 8192, 3}, {begin + 8193, 4}});
    const SparseVector b = make_sparse({{begin, 5}, {begin + 8191, 6}, {begin + 16384, 7}});
    EXPECT_EQ(sum_of({a, b}, {begin, begin + 20000}), oracle({a, b})) << begin;
  }
}

TEST(Sum, block_reused_after_another_starts_from_zero) {
  const SparseVector a = make_sparse({{5, 1}, {8192 + 5, 10}, {3 * 8192 + 5, 100}});
  EXPECT_EQ(sum_of({a, a}, {0, 40000}), (EntryList{{5, 2}, {8192 + 5, 20}, {3 * 8192 + 5, 200}}));
}

TEST(Sum, indices_at_the_end_of_32_bits_are_exact) {
  constexpr Index kLast = 0xfffffffeU;
  const SparseVector a = make_sparse({{0, 1}, {kLast - 8192, 1}, {kLast - 1, 2}, {kLast, 3}});
  const SparseVector b = make_sparse({{kLast - 8191, 1}, {kLast, 4}});
  EXPECT_EQ(sum_of({a, b}, {0, kLast + 1}), oracle({a, b}));
  const SparseVector tail = make_sparse({{kLast - 1, 2}, {kLast, 3}});
  EXPECT_EQ(sum_of({tail, tail}, {kLast - 10, kLast + 1}), oracle({tail, tail}));
}

}  // namespace
}  // namespace oktopk
