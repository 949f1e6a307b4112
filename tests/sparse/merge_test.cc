// SPDX-License-Identifier: Apache-2.0
// Merges against std::stable_sort: the ends meet somewhere, one side may end early, and equal
// indices must keep their order.
#include "oktopk/sparse/merge.h"

#include <gtest/gtest.h>

#include "tests/support/sparse.h"

namespace oktopk::merge_test {
namespace {

EntryList sorted_stably(EntryList all) {
  std::stable_sort(all.begin(), all.end(), [](const Entry& x, const Entry& y) { return x.first < y.first; });
  return all;
}

EntryList joined(const std::vector<SparseVector>& parts) {
  EntryList all;
  for (const SparseVector& part : parts)
    for (const Entry& entry : list_of(part)) all.push_back(entry);
  return all;
}

EntryList merge_of(const SparseVector& a, const SparseVector& b) {
  SparseVector out;
  out.resize(a.size() + b.size());
  merge(a, b, {out.idx.data(), out.val.data()});
  return list_of(out);
}

EntryList merge_all_of(const std::vector<SparseVector>& parts) {
  const std::vector<CooView> views(parts.begin(), parts.end());
  SparseVector here;
  SparseVector there;
  here.resize(joined(parts).size());
  there.resize(here.size());
  return list_of(merge_all(views, {here.idx.data(), here.val.data()}, {there.idx.data(), there.val.data()}));
}

TEST(Merge, all_small_sizes_equal_a_stable_sort) {
  Random random(1);
  for (std::size_t a = 0; a <= 40; ++a)
    for (std::size_t b = 0; b <= 40; ++b) {
      const std::vector<SparseVector> parts = {random_sparse(random, a, 5, 55), random_sparse(random, b, 5, 55)};
      ASSERT_EQ(merge_of(parts[0], parts[1]), sorted_stably(joined(parts))) << a << " " << b;
    }
}

TEST(Merge, one_before_among_or_far_longer_than_the_other_equals_a_stable_sort) {
  Random random(2);
  const SparseVector low = random_sparse(random, 500, 0, 1000);
  const SparseVector high = random_sparse(random, 300, 1000, 2000);
  const SparseVector all = random_sparse(random, 3000, 0, 4000);
  const SparseVector few = random_sparse(random, 20, 0, 4000);
  for (const auto& [a, b] : {std::pair{low, high}, {low, all}, {high, all}, {few, all}, {all, all}}) {
    EXPECT_EQ(merge_of(a, b), sorted_stably(joined({a, b})));
    EXPECT_EQ(merge_of(b, a), sorted_stably(joined({b, a})));
  }
}

TEST(Merge, of_repeated_indices_keeps_their_order) {
  Random random(3);
  for (int trial = 0; trial < 100; ++trial) {
    std::vector<SparseVector> parts(2);
    for (SparseVector& part : parts) {
      Index i = 0;
      for (std::uint64_t count = random.below(100); count != 0; --count)
        part.push_back(i += static_cast<Index>(random.below(2)), static_cast<float>(random.below(1000)));
    }
    ASSERT_EQ(merge_of(parts[0], parts[1]), sorted_stably(joined(parts)));
  }
}

TEST(Merge, all_of_any_number_of_parts_equals_a_stable_sort) {
  Random random(4);
  for (std::size_t count = 2; count <= 20; ++count) {
    std::vector<SparseVector> parts;
    for (std::size_t p = 0; p < count; ++p)
      parts.push_back(random_sparse(random, p % 3 == 1 ? 0 : random.below(60), 0, 100));
    ASSERT_EQ(merge_all_of(parts), sorted_stably(joined(parts))) << count;
  }
}

TEST(Merge, combine_adds_neighbours_in_order_and_leaves_zeros_out) {
  SparseVector v =
      make_sparse({{1, 1e8F}, {1, 1}, {1, -1e8F}, {2, 5}, {3, 1e8F}, {3, -1e8F}, {3, 1}, {4, -0.0F}, {9, 2}, {9, -2}});
  v.resize(combine(source_of(v), sink_of(v)));
  EXPECT_EQ(list_of(v), (EntryList{{2, 5}, {3, 1}}));
  EXPECT_EQ(combine({}, {}), 0u);
}

}  // namespace
}  // namespace oktopk::merge_test
