// SPDX-License-Identifier: Apache-2.0
#include "tools/kernels/limits.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "oktopk/base/error.h"

namespace oktopk::limits_test {
namespace {

std::vector<float> ramp(std::size_t n) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>(i) * 0.37F - 5;
  return x;
}

template <class T>
void expect_equal_bits(const std::vector<T>& x, void (*LimitPasses::*pass)(float*, const T*, float, std::size_t)) {
  std::vector<float> expected = ramp(x.size() + 1);
  (plain_limit_passes().*pass)(expected.data(), x.data(), 0.7F, x.size());
  for (const LimitPasses& variant : limit_variants()) {
    std::vector<float> y = ramp(x.size() + 1);
    (variant.*pass)(y.data(), x.data(), 0.7F, x.size());
    EXPECT_EQ(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)), 0) << x.size();
  }
}

TEST(Limits, axpy_equals_the_plain_loop_bit_for_bit_at_every_length) {
  for (std::size_t n = 0; n < 200; ++n) {
    std::vector<Bf16> bf16(n);
    std::vector<Fp16> fp16(n);
    for (std::size_t i = 0; i < n; ++i) {
      bf16[i].bits = static_cast<std::uint16_t>(0x3F00 + 37 * i);
      fp16[i].bits = static_cast<std::uint16_t>(0x2C00 + 53 * i);
    }
    expect_equal_bits(ramp(n), &LimitPasses::axpy_fp32);
    expect_equal_bits(bf16, &LimitPasses::axpy_bf16);
    expect_equal_bits(fp16, &LimitPasses::axpy_fp16);
  }
}

TEST(Limits, read_sums_every_element_once) {
  for (std::size_t n = 0; n < 300; n += 7) {
    std::vector<float> x(n);
    float expected = 0;
    for (std::size_t i = 0; i < n; ++i) expected += x[i] = static_cast<float>(i % 64);
    for (const LimitPasses& variant : limit_variants()) EXPECT_EQ(variant.read(x.data(), n), expected) << n;
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
