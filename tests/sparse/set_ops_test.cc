// SPDX-License-Identifier: Apache-2.0
#include "oktopk/sparse/set_ops.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/support/sparse.h"

namespace oktopk {
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

TEST(SetOps, intersect_random_equals_membership) {
  Random random(3);
  for (int trial = 0; trial < 100; ++trial) {
    const SparseVector a = random_sparse(random, random.below(50), 0, 100);
    const SparseVector b = random_sparse(random, random.below(50), 0, 100);
    const std::set<Index> members(b.idx.begin(), b.idx.end());
    EntryList expected;
    for (const Entry& entry : list_of(a))
      if (members.contains(entry.first)) expected.push_back(entry);
    SparseVector out;
    intersect(a, b.idx, out);
    EXPECT_EQ(list_of(out), expected);
  }
}

TEST(SetOps, make_canonical_sorts_and_adds_equal_indices) {
  SparseVector v = make_sparse({{5, 1}, {2, 2}, {5, 3}, {0xfffffffeU, 1}, {2, 4}, {5, 5}});
  make_canonical(v);
  EXPECT_EQ(list_of(v), (EntryList{{2, 6}, {5, 9}, {0xfffffffeU, 1}}));
}

TEST(SetOps, make_canonical_adds_in_the_order_given) {
  SparseVector v = make_sparse({{1, 1e8F}, {0, 1}, {1, -1e8F}, {1, 1}});
  make_canonical(v);
  EXPECT_EQ(list_of(v), (EntryList{{0, 1}, {1, 1}}));
}

TEST(SetOps, make_canonical_of_canonical_changes_nothing) {
  SparseVector v = make_sparse({{1, 1}, {2, 0}, {7, 3}});
  make_canonical(v);
  EXPECT_EQ(list_of(v), (EntryList{{1, 1}, {2, 0}, {7, 3}}));
}

}  // namespace
}  // namespace oktopk
