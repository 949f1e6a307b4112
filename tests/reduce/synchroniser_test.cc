// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/synchroniser.h"

#include <gtest/gtest.h>

#include <vector>

#include "oktopk/base/error.h"
#include "tests/support/sparse.h"

namespace oktopk::synchroniser_test {
namespace {

EntryList visits_of(const Update& update) {
  EntryList seen;
  update.for_each([&](Index i, float mean) { seen.emplace_back(i, mean); });
  return seen;
}

TEST(Update, for_each_of_a_sparse_one_visits_its_entries) {
  const SparseVector v = make_sparse({{1, 0.5F}, {4, -2.0F}});
  const Update update{v};
  EXPECT_FALSE(update.is_dense());
  EXPECT_EQ(update.size(), 2u);
  EXPECT_EQ(visits_of(update), list_of(v));
}

TEST(Update, for_each_of_a_dense_one_visits_all) {
  const std::vector<float> values = {3, 0, -1};
  const Update update{{}, values};
  EXPECT_TRUE(update.is_dense());
  EXPECT_EQ(update.size(), 3u);
  EXPECT_EQ(visits_of(update), (EntryList{{0, 3.0F}, {1, 0.0F}, {2, -1.0F}}));
}

TEST(Update, for_each_of_an_empty_one_visits_nothing) {
  EXPECT_EQ(visits_of({}), EntryList{});
  EXPECT_FALSE(Update{}.is_dense());
  EXPECT_FALSE(Update{}.skipped);
}

TEST(Update, subtract_from_moves_the_weights) {
  const SparseVector v = make_sparse({{0, 1.0F}, {2, -0.5F}});
  std::vector<float> weights = {5, 5, 5};
  Update{v}.subtract_from(weights);
  EXPECT_EQ(weights, (std::vector<float>{4, 5, 5.5F}));
  Update{{}, std::vector<float>{1, 1, 1}}.subtract_from(weights);
  EXPECT_EQ(weights, (std::vector<float>{3, 4, 4.5F}));
}

using Values = std::vector<float>;

Values shown(DenseMean& mean, const Update& update) {
  const auto values = mean.show(update);
  return {values.begin(), values.end()};
}

TEST(DenseMean, show_replaces_the_last_update_whatever_its_kind) {
  DenseMean mean(4);
  const SparseVector first = make_sparse({{0, 1}, {3, 2}});
  const SparseVector second = make_sparse({{0, 5}, {1, 6}});
  const Values all = {9, 8, 7, 6};
  EXPECT_EQ(shown(mean, {.sparse = first}), (Values{1, 0, 0, 2}));
  EXPECT_EQ(shown(mean, {.sparse = second}), (Values{5, 6, 0, 0}));
  EXPECT_EQ(shown(mean, {.sparse = {}, .dense = all}), all);
  EXPECT_EQ(shown(mean, {.sparse = first}), (Values{1, 0, 0, 2}));
  EXPECT_EQ(shown(mean, {.sparse = {}, .skipped = true}), (Values{0, 0, 0, 0}));
}

TEST(DenseMean, show_refuses_an_update_of_another_n) {
  DenseMean mean(4);
  const SparseVector beyond = make_sparse({{4, 1}});
  const Values longer(5, 1.0F);
  EXPECT_THROW(mean.show({.sparse = beyond}), UsageError);
  EXPECT_THROW(mean.show({.sparse = {}, .dense = longer}), UsageError);
}

}  // namespace
}  // namespace oktopk::synchroniser_test
