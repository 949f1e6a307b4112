// SPDX-License-Identifier: Apache-2.0
#include "oktopk/base/gradient.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace oktopk::half_test {
namespace {

TEST(Half, bf16_is_the_upper_half_of_a_float) {
  EXPECT_EQ(to_float(Bf16{0x3F80}), 1.0F);
  EXPECT_EQ(to_float(Bf16{0xC049}), -3.140625F);
  EXPECT_EQ(to_float(Bf16{0x0001}), 0x1p-133F);
  EXPECT_EQ(to_float(Bf16{0x7F80}), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(to_float(Bf16{0x7FC0})));
}

// Every half, by its definition.
TEST(Half, fp16_widens_every_number_exactly) {
  for (std::uint32_t bits = 0; bits < 0x8000U; ++bits) {
    const int exponent = static_cast<int>(bits >> 10U);
    const auto fraction = static_cast<double>(bits & 0x3FFU);
    const float x = to_float(Fp16{static_cast<std::uint16_t>(bits)});
    const float minus = to_float(Fp16{static_cast<std::uint16_t>(bits | 0x8000U)});
    if (exponent == 31) {
      EXPECT_EQ(std::isinf(x), fraction == 0) << bits;
      EXPECT_EQ(std::isnan(x), fraction != 0) << bits;
      continue;
    }
    const double expected = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    EXPECT_EQ(x, static_cast<float>(expected)) << bits;
    EXPECT_EQ(minus, -x) << bits;
    EXPECT_EQ(std::signbit(minus), true) << bits;
  }
}

}  // namespace
}  // namespace oktopk::half_test
