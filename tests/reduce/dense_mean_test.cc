// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/dense_mean.h"

#include <gtest/gtest.h>

#include <vector>

#include "oktopk/base/error.h"
#include "tests/support/sparse.h"

namespace oktopk::dense_mean_test {
namespace {

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
}  // namespace oktopk::dense_mean_test
