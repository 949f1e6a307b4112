// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tools/statistics.h"

namespace oktopk::statistics_test {
namespace {

TEST(Statistics, quantiles_are_linear_between_values) {
  const std::vector<double> values = {4, 1, 3, 2, 5};
  EXPECT_DOUBLE_EQ(quantile(values, 0), 1);
  EXPECT_DOUBLE_EQ(quantile(values, 0.5), 3);
  EXPECT_DOUBLE_EQ(quantile(values, 0.05), 1.2);
  EXPECT_DOUBLE_EQ(quantile(values, 1), 5);
  EXPECT_DOUBLE_EQ(quantile({7}, 0.95), 7);
  EXPECT_DOUBLE_EQ(quantile({}, 0.5), 0);
}

TEST(Statistics, mean_deviation_and_largest) {
  const std::vector<double> values = {0.5, 1, 1.5, 2};
  EXPECT_DOUBLE_EQ(mean_of(values), 1.25);
  EXPECT_NEAR(deviation_of(values), 0.6455, 1e-4);
  EXPECT_DOUBLE_EQ(max_of(values), 2);
}

TEST(Statistics, nothing_gives_zeros) {
  EXPECT_EQ(mean_of({}), 0);
  EXPECT_EQ(deviation_of({}), 0);
  EXPECT_EQ(max_of({}), 0);
}

TEST(Statistics, imbalance_is_largest_over_mean) {
  EXPECT_DOUBLE_EQ(imbalance(std::vector<double>{1, 2, 6}), 2);
  EXPECT_DOUBLE_EQ(imbalance(std::vector<double>{3, 3, 3}), 1);
  EXPECT_DOUBLE_EQ(imbalance(std::vector<double>{0, 0}), 1);
}

TEST(Statistics, ranks_are_averaged_step_by_step) {
  const std::vector<std::vector<double>> by_rank = {{1, 2}, {3, 6}, {5, 1}};
  EXPECT_EQ(mean_over_ranks(by_rank), (std::vector<double>{3, 3}));
}

TEST(Statistics, norms) {
  EXPECT_DOUBLE_EQ(norm1(std::vector<double>{3, -4}), 7);
  EXPECT_DOUBLE_EQ(norm2(std::vector<double>{3, -4}), 5);
}

}  // namespace
}  // namespace oktopk::statistics_test
