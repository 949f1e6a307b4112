// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "lab/tests/study/small_task.h"
#include "tests/support/message.h"

namespace oktopk::parts_test {
namespace {

std::vector<float> gradient(const std::string& data, int rank, Index n = 50) {
  GradientStream stream = small_task(2, n, 40, 0.1, data).stream(data, rank);
  const auto x = stream.at(20);
  return {x.begin(), x.end()};
}

std::set<std::size_t> largest_of(const std::vector<float>& x, std::size_t k) {
  std::vector<std::size_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::partial_sort(order, order.begin() + static_cast<std::ptrdiff_t>(k), std::greater<>(),
                            [&](std::size_t i) { return std::fabs(x[i]); });
  return {order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k)};
}

TEST(StudyTask, stream_knows_streams_and_inputs) {
  EXPECT_EQ(gradient("identical", 0), gradient("identical", 4));
  for (const char* data : {"calm", "rough", "gaussian", "dyadic", "skewed"}) {
    EXPECT_EQ(gradient(data, 0).size(), 50U);
    EXPECT_NE(gradient(data, 0), gradient(data, 4)) << data;
  }
}

TEST(StudyTask, stream_calm_gives_ranks_supports_that_overlap_in_part) {
  const auto a = gradient("calm", 0, 10000);
  const auto b = gradient("calm", 1, 10000);
  int same_sign = 0;
  for (std::size_t i = 0; i < a.size(); ++i) same_sign += (a[i] > 0) == (b[i] > 0);
  EXPECT_GT(same_sign, 6000);
  EXPECT_LT(same_sign, 7500);
  auto together = largest_of(a, 100);
  together.merge(largest_of(b, 100));
  EXPECT_GT(together.size(), 110U);
  EXPECT_LT(together.size(), 190U);
}

TEST(StudyTask, check_stream_names_what_it_does_not_know) {
  const std::string text = message_of([] { check_stream("stormy"); });
  EXPECT_NE(text.find("unknown data 'stormy'; there are: calm, rough"), std::string::npos) << text;
}

TEST(Statistics, deviation_is_that_of_the_sample) {
  EXPECT_NEAR(deviation_of(std::vector<double>{0.5, 1, 1.5, 2}), 0.6455, 1e-4);
  EXPECT_EQ(deviation_of({}), 0);
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
}  // namespace oktopk::parts_test
