// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "tests/codec/value_payload.h"

namespace oktopk::testing::value_float_test {
namespace {

TEST(ValueFp32, decode_returns_every_bit) {
  const std::vector<float> val{0.0f, -0.0f, 0x1p-149f, -0x1.FFFFFEp127f, 1.0f / 3};
  const std::vector<float> out = recoded(value_fp32(), val);
  EXPECT_EQ(std::memcmp(out.data(), val.data(), sizeof(float) * val.size()), 0);
}

TEST(ValueFp32, decode_infinity_or_nan_throws) {
  EXPECT_THROW(decoded_values(value_fp32(), 1, {0, 0, 0x80, 0x7F}), CommError);
  EXPECT_THROW(decoded_values(value_fp32(), 1, {0, 0, 0x80, 0xFF}), CommError);
  EXPECT_THROW(decoded_values(value_fp32(), 2, {0, 0, 0, 0, 1, 0, 0x80, 0xFF}), CommError);
}

TEST(ValueBf16, recode_rounds_to_nearest_even) {
  const std::vector<float> val{1.0f, 1 + 0x1p-8f, 1 + 0x3p-8f, 1 + 0x1.8p-8f, -(1 + 0x1p-8f)};
  EXPECT_EQ(recoded(value_bf16(), val), (std::vector<float>{1.0f, 1.0f, 1 + 0x1p-6f, 1 + 0x1p-7f, -1.0f}));
}

TEST(ValueBf16, recode_largest_float_stays_finite) {
  EXPECT_EQ(recoded(value_bf16(), {0x1.FFFFFEp127f, -0x1.FFFFFEp127f}),
            (std::vector<float>{0x1.FEp127f, -0x1.FEp127f}));
}

TEST(ValueBf16, recode_denormals_is_nearest) {
  EXPECT_EQ(recoded(value_bf16(), {0x1p-133f, 0x1p-149f, 0x1.8p-133f, -0.0f}),
            (std::vector<float>{0x1p-133f, 0.0f, 0x1p-132f, 0.0f}));
}

TEST(ValueBf16, decode_infinity_or_nan_throws) {
  EXPECT_THROW(decoded_values(value_bf16(), 1, {0x80, 0x7F}), CommError);
  EXPECT_THROW(decoded_values(value_bf16(), 1, {0x80, 0xFF}), CommError);
  EXPECT_THROW(decoded_values(value_bf16(), 1, {0xC1, 0x7F}), CommError);
}

TEST(ValueBf16, recode_tails_has_error_of_8_bits) {
  EXPECT_LE(relative_error(value_bf16(), gaussian_tail()), 0.0017);
  EXPECT_LE(relative_error(value_bf16(), laplace_tail()), 0.0018);
  EXPECT_LE(relative_error(value_bf16(), student_tail()), 0.0018);
}

}  // namespace
}  // namespace oktopk::testing::value_float_test
