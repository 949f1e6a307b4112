// SPDX-License-Identifier: Apache-2.0
#include "oktopk/select/selector.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/sparse.h"

namespace oktopk::gaussian_test {
namespace {

TEST(NormalQuantile, known_points) {
  EXPECT_NEAR(normal_quantile(0.5), 0, 1e-11);
  EXPECT_NEAR(normal_quantile(0.975), 1.959963984540054, 1e-10);
  EXPECT_NEAR(normal_quantile(0.841344746068543), 1, 1e-10);
  EXPECT_NEAR(normal_quantile(0.0013498980316300933), -3, 1e-10);
  EXPECT_NEAR(normal_quantile(1e-9), -5.997807015007686, 1e-9);
  EXPECT_NEAR(normal_quantile(1e-300), -37.0471, 1e-3);
}

std::size_t count_for(double mean, double deviation, std::size_t k) {
  Random random(5);
  std::vector<float> x(100000);
  for (float& v : x) v = static_cast<float>(mean + deviation * random.normal());
  const auto selector = make_gaussian({});
  SparseVector out;
  selector->select(*make_cpu_device(), {.acc = x}, k, out);
  return out.size();
}

TEST(GaussianSelector, select_normal_values_is_within_a_fifth_of_k) {
  for (const double deviation : {1.0, 1e-6, 1e6}) {
    EXPECT_NEAR(static_cast<double>(count_for(0, deviation, 1000)), 1000, 200) << deviation;
    EXPECT_NEAR(static_cast<double>(count_for(0, deviation, 10000)), 10000, 2000) << deviation;
  }
}

TEST(GaussianSelector, select_all_of_normal_values_takes_more_than_half) { EXPECT_GE(count_for(0, 1, 100000), 66667u); }

// A spread of magnitudes that is not normal: the fitted threshold alone misses by far.
TEST(GaussianSelector, select_other_tails_is_corrected_towards_k) {
  const auto device = make_cpu_device();
  Random random(6);
  std::vector<float> x(100000);
  for (float& v : x) v = static_cast<float>(std::pow(random.normal(), 3));
  for (const std::size_t k : {20000U, 30000U}) {
    const Moments fit = device->moments(x);
    const double tail = static_cast<double>(k) / static_cast<double>(x.size());
    const double threshold = std::fabs(fit.mean) - normal_quantile(tail / 2) * fit.standard_deviation;
    SparseVector uncorrected, out;
    device->select_at_least(x, 0, static_cast<float>(threshold), uncorrected);
    EXPECT_TRUE(3 * uncorrected.size() < 2 * k || 3 * uncorrected.size() > 4 * k);
    std::vector<float> acc = x;
    const auto selector = make_gaussian({});
    selector->select(*device, {.acc = acc}, k, out);
    EXPECT_GE(3 * out.size(), 2 * k);
    EXPECT_LE(3 * out.size(), 4 * k);
  }
}

// Error feedback cuts the tails off. A correction that ends above all values would send nothing,
// and without new gradients nothing for ever.
TEST(GaussianSelector, select_of_values_that_are_there_never_ends_with_nothing) {
  Random random(7);
  for (int trial = 0; trial < 2000; ++trial) {
    const std::size_t n = 50 + random.below(300);
    const float cut = 0.2F + static_cast<float>(random.uniform());
    std::vector<float> x(n);
    for (float& v : x) {
      v = static_cast<float>(random.normal());
      if (std::fabs(v) > cut) v = 0;
    }
    if (std::all_of(x.begin(), x.end(), [](float v) { return v == 0; })) continue;
    const auto selector = make_gaussian({});
    SparseVector out;
    selector->select(*make_cpu_device(), {.acc = x}, 1 + n / 15, out);
    ASSERT_FALSE(out.empty()) << "trial " << trial;
  }
}

}  // namespace
}  // namespace oktopk::gaussian_test
