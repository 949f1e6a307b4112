// SPDX-License-Identifier: Apache-2.0
#include "oktopk/tune/robust.h"

#include <gtest/gtest.h>

namespace oktopk::robust_test {
namespace {

TEST(Robust, median_is_the_middle_or_the_mean_of_two) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({5}), 5);
  EXPECT_EQ(median({9, 1, 2}), 2);
  EXPECT_EQ(median({9, 1, 2, 4}), 3);
}

TEST(Robust, slope_survives_any_wrong_point_of_five) {
  const std::vector<double> x = {1, 4, 16, 32, 64};
  const std::vector<double> right = {12, 18, 42, 74, 138};  // 10 + 2x
  EXPECT_DOUBLE_EQ(median_slope(x, right), 2);
  for (std::size_t i = 0; i < x.size(); ++i)
    for (const double wrong : {-1000.0, 1000.0}) {
      std::vector<double> y = right;
      y[i] = wrong;
      EXPECT_DOUBLE_EQ(median_slope(x, y), 2) << i;
    }
}

}  // namespace
}  // namespace oktopk::robust_test
