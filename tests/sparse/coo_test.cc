// SPDX-License-Identifier: Apache-2.0
#include "oktopk/sparse/coo.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/sparse.h"

namespace oktopk::coo_test {
namespace {

TEST(Coo, is_canonical_accepts_strictly_increasing_indices) {
  EXPECT_TRUE(is_canonical(SparseVector{}));
  EXPECT_TRUE(is_canonical(make_sparse({{5, 1}})));
  EXPECT_TRUE(is_canonical(make_sparse({{0, 1}, {1, 2}, {0xfffffffeU, 3}})));
}

TEST(Coo, is_canonical_refuses_repeated_and_falling_indices) {
  EXPECT_FALSE(is_canonical(make_sparse({{1, 1}, {1, 2}})));
  EXPECT_FALSE(is_canonical(make_sparse({{0, 1}, {3, 1}, {2, 2}})));
}

TEST(Coo, is_canonical_refuses_different_lengths) {
  const Index idx[] = {1, 2};
  const float val[] = {1};
  EXPECT_FALSE(is_canonical({idx, val}));
}

TEST(Coo, part_takes_begin_and_leaves_end_out) {
  const SparseVector v = make_sparse({{2, 1}, {4, 2}, {6, 3}, {8, 4}});
  EXPECT_EQ(list_of(part(v, {4, 8})), (EntryList{{4, 2}, {6, 3}}));
  EXPECT_EQ(list_of(part(v, {0, 100})), list_of(v));
  EXPECT_EQ(list_of(part(v, {7, 9})), (EntryList{{8, 4}}));
}

TEST(Coo, part_of_an_empty_or_missed_range_is_empty) {
  const SparseVector v = make_sparse({{2, 1}, {4, 2}});
  EXPECT_TRUE(part(v, {2, 2}).empty());
  EXPECT_TRUE(part(v, {5, 9}).empty());
  EXPECT_TRUE(part(v, {0, 2}).empty());
  EXPECT_TRUE(part(SparseVector{}, {0, 9}).empty());
}

TEST(Coo, parts_of_consecutive_ranges_are_the_whole) {
  Random random(1);
  const SparseVector v = random_sparse(random, 200, 0, 1000);
  SparseVector joined;
  for (Index begin = 0; begin < 1000; begin += 77) joined.append(part(v, {begin, std::min<Index>(1000, begin + 77)}));
  EXPECT_EQ(list_of(joined), list_of(v));
}

TEST(SparseVector, clear_and_append_reuse_the_memory) {
  SparseVector v = make_sparse({{1, 1}, {2, 2}, {3, 3}});
  const Index* memory = v.idx.data();
  v.clear();
  EXPECT_TRUE(v.empty());
  v.append(make_sparse({{7, 7}}));
  EXPECT_EQ(list_of(v), (EntryList{{7, 7}}));
  EXPECT_EQ(v.idx.data(), memory);
}

TEST(Range, width_of_the_whole_index_space_does_not_wrap) {
  EXPECT_EQ((Range{0, 0xffffffffU}).width(), 0xffffffffU);
  EXPECT_EQ((Range{0xfffffff0U, 0xffffffffU}).width(), 15u);
}

TEST(Coo, increases_finds_one_wrong_pair_anywhere) {
  for (Index count = 1; count < 70; ++count) {
    std::vector<Index> idx(count);
    // Both halves of the numbers: a signed comparison would be wrong here.
    for (Index i = 0; i < count; ++i) idx[i] = 5 + 3 * i + (i < count / 2 ? 0 : 0x7FFFFFF0u);
    EXPECT_TRUE(increases(idx));
    for (Index i = 1; i < count; ++i) {
      std::vector<Index> wrong = idx;
      wrong[i] = wrong[i - 1];
      EXPECT_FALSE(increases(wrong)) << count << ' ' << i;
      wrong[i] = wrong[i - 1] - 1;
      EXPECT_FALSE(increases(wrong)) << count << ' ' << i;
    }
  }
}

}  // namespace
}  // namespace oktopk::coo_test
