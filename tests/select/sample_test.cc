// SPDX-License-Identifier: Apache-2.0
#include "oktopk/select/sample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "oktopk/base/random.h"

namespace oktopk::magnitude_sample_test {
namespace {

std::vector<float> normal_values(std::size_t n) {
  Random random(3);
  std::vector<float> x(n);
  for (float& v : x) v = static_cast<float>(random.normal());
  return x;
}

TEST(MagnitudeSample, draw_estimates_counts_within_its_uncertainty) {
  std::vector<float> x = normal_values(500000);
  MagnitudeSample sample;
  int outside = 0;
  for (std::size_t turn = 0; turn < 40; ++turn) {
    sample.draw(*make_cpu_device(), {.acc = x}, 1000, turn);
    EXPECT_NEAR(static_cast<double>(sample.size()), 4000, 20);
    const double expected = sample.share(0.0455 * 500000);  // beyond two standard deviations
    const auto count = static_cast<double>(sample.count_at_least(2.0F));
    EXPECT_NEAR(sample.uncertainty(2.0F), std::sqrt(expected), 0.3 * std::sqrt(expected));
    outside += std::fabs(count - expected) > 2 * sample.uncertainty(2.0F) ? 1 : 0;
  }
  EXPECT_LE(outside, 8);
}

// Whole rows are hot: four neighbours tell no more than one.
TEST(MagnitudeSample, uncertainty_of_clustered_values_is_larger) {
  Random random(4);
  std::vector<float> x(500000);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = i % 1000 == 0 ? (random.below(20) == 0 ? 9.0F : 1.0F) : x[i - 1];
  MagnitudeSample sample;
  sample.draw(*make_cpu_device(), {.acc = x}, 1000, 0);
  const auto count = static_cast<double>(sample.count_at_least(5.0F));
  EXPECT_GT(sample.uncertainty(5.0F), 1.8 * std::sqrt(count));
}

TEST(MagnitudeSample, draw_sees_all_columns_of_a_matrix) {
  std::vector<float> x(1 << 20, 0.0F);
  for (std::size_t i = 0; i < x.size(); i += 1024) x[i + 777] = 1;
  MagnitudeSample sample;
  sample.draw(*make_cpu_device(), {.acc = x}, 1024, 0);
  EXPECT_GE(sample.count_at_least(1.0F), 2u);
  EXPECT_LE(sample.count_at_least(1.0F), 10u);
}

TEST(MagnitudeSample, largest_equals_a_sort) {
  for (const std::size_t n : {1U, 5U, 1000U, 30000U}) {
    std::vector<float> x = normal_values(n);
    MagnitudeSample sample;
    sample.draw(*make_cpu_device(), {.acc = x}, n, 0);
    Uninitialised<std::uint32_t> bits;
    make_cpu_device()->sample_magnitudes({.acc = x}, 0, 5 | (n / 4096), bits);
    if (n <= 4096) {
      ASSERT_EQ(sample.size(), bits.size());
      std::sort(bits.rbegin(), bits.rend());
      for (std::size_t rank = 0; rank < bits.size(); ++rank)
        ASSERT_EQ(sample.largest(rank), std::bit_cast<float>(bits[rank]));
    }
    for (std::size_t rank = 0; rank + 1 < sample.size(); rank += 1 + rank / 2) {
      const float at = sample.largest(rank);
      ASSERT_GE(at, sample.largest(rank + 1));
      ASSERT_EQ(sample.count_at_least(at), rank + 1);
    }
  }
}

TEST(MagnitudeSample, largest_of_values_that_are_not_finite_is_finite) {
  std::vector<float> x(100, std::numeric_limits<float>::quiet_NaN());
  x[50] = std::numeric_limits<float>::infinity();
  MagnitudeSample sample;
  sample.draw(*make_cpu_device(), {.acc = x}, 100, 0);
  EXPECT_EQ(sample.largest(0), std::numeric_limits<float>::max());
  EXPECT_EQ(sample.count_at_least(1.0F), sample.size());
}

}  // namespace
}  // namespace oktopk::magnitude_sample_test
