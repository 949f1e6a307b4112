// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "tests/codec/value_payload.h"

namespace oktopk::testing::value_fp32_test {
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

}  // namespace
}  // namespace oktopk::testing::value_fp32_test
