// SPDX-License-Identifier: Apache-2.0
#include "lab/kernels/limits.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "oktopk/base/error.h"

namespace oktopk::limits_test {
namespace {

std::vector<float> ramp(std::size_t n) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>(i) * 0.37F - 5;
  return x;
}

void expect_axpy(Gradient x, std::size_t n, const std::function<float(std::size_t)>& at) {
  std::vector<float> y = ramp(n);
  Limits().axpy(y, x, 0.7F);
  for (std::size_t i = 0; i < n; ++i) {
    const float product = 0.7F * at(i);
    EXPECT_EQ(y[i], ramp(n)[i] + product) << i << " of " << n;
  }
}

TEST(Limits, axpy_equals_the_plain_loop_bit_for_bit_at_every_length) {
  for (std::size_t n = 0; n < 100; ++n) {
    std::vector<Bf16> bf16(n);
    for (std::size_t i = 0; i < n; ++i) bf16[i].bits = static_cast<std::uint16_t>(0x3F00 + 37 * i);
    const std::vector<float> x = ramp(n);
    expect_axpy(x, n, [&](std::size_t i) { return x[i]; });
    expect_axpy(bf16, n, [&](std::size_t i) { return to_float(bf16[i]); });
  }
}

TEST(Limits, read_sums_every_element_once) {
  for (std::size_t n = 0; n < 300; n += 7) {
    std::vector<float> x(n);
    float expected = 0;
    for (std::size_t i = 0; i < n; ++i) expected += x[i] = static_cast<float>(i % 64);
    EXPECT_EQ(Limits().read(x), expected) << n;
  }
}

TEST(Limits, threads_share_a_pass_without_gap_or_overlap) {
  for (const int threads : {1, 2, 3, 7}) {
    for (const std::size_t n : {0U, 1U, 63U, 64U, 65U, 1000U}) {
      Limits limits(threads);
      const std::vector<float> ones(n, 1.0F);
      std::vector<float> y(n, 0.0F), copied(n, 0.0F);
      EXPECT_EQ(limits.read(ones), static_cast<float>(n));
      limits.copy(std::as_writable_bytes(std::span(copied)), std::as_bytes(std::span(ones)));
      EXPECT_EQ(copied, ones);
      limits.axpy(y, ones, 1.0F);
      EXPECT_EQ(y, ones) << threads;
    }
  }
}

TEST(Limits, refuses_no_threads) { EXPECT_THROW(Limits(0), UsageError); }

}  // namespace
}  // namespace oktopk::limits_test
