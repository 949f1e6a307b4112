// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "oktopk/base/error.h"
#include "oktopk/codec/coding.h"
#include "tests/codec/samples.h"

namespace oktopk::testing::values_test {
namespace {

std::vector<float> recoded(const ValueCodec& codec, const std::vector<float>& val) {
  Bytes bytes(codec.bytes(val.size()));
  codec.encode(val, bytes);
  std::vector<float> out(val.size());
  codec.decode(bytes, out);
  return out;
}

std::vector<float> decoded_values(const ValueCodec& codec, std::size_t count, const std::vector<unsigned>& payload) {
  Bytes bytes;
  for (const unsigned n : payload) bytes.push_back(static_cast<std::byte>(n));
  std::vector<float> out(count);
  codec.decode(bytes, out);
  return out;
}

double relative_error(const ValueCodec& codec, const std::vector<float>& val) {
  const std::vector<float> out = recoded(codec, val);
  double squares = 0;
  double errors = 0;
  for (std::size_t i = 0; i < val.size(); ++i) {
    squares += double{val[i]} * val[i];
    errors += (double{val[i]} - out[i]) * (double{val[i]} - out[i]);
  }
  return std::sqrt(errors / squares);
}

// The largest 1% of 2^20 draws, in the order they came.
template <class Distribution>
std::vector<float> top_percent(Distribution draw) {
  Random random(31);
  std::vector<float> all(1 << 20);
  for (float& v : all) {
    v = static_cast<float>(draw(random));
    if (random() % 2 == 0) v = -v;
  }
  std::vector<float> sorted = all;
  const auto nth = sorted.begin() + (1 << 20) / 100;
  const auto larger = [](float a, float b) { return std::fabs(a) > std::fabs(b); };
  std::nth_element(sorted.begin(), nth, sorted.end(), larger);
  std::vector<float> top;
  for (const float v : all) {
    if (larger(v, *nth)) top.push_back(v);
  }
  return top;
}

std::vector<float> gaussian_tail() { return top_percent(std::normal_distribution<>()); }

TEST(ValueFp32, decode_returns_every_bit) {
  const std::vector<float> val{0.0f, -0.0f, 0x1p-149f, -0x1.FFFFFEp127f, 1.0f / 3};
  const std::vector<float> out = recoded(value_fp32(), val);
  EXPECT_EQ(std::memcmp(out.data(), val.data(), sizeof(float) * val.size()), 0);
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

TEST(Values, decode_infinity_or_nan_throws) {
  for (const std::vector<unsigned>& bytes :
       {std::vector<unsigned>{0, 0, 0x80, 0x7F}, {0, 0, 0x80, 0xFF}, {1, 0, 0x80, 0xFF}})
    EXPECT_THROW(decoded_values(value_fp32(), 1, bytes), CommError);
  EXPECT_THROW(decoded_values(value_fp32(), 2, {0, 0, 0, 0, 1, 0, 0x80, 0xFF}), CommError);
  for (const std::vector<unsigned>& bytes : {std::vector<unsigned>{0x80, 0x7F}, {0x80, 0xFF}, {0xC1, 0x7F}})
    EXPECT_THROW(decoded_values(value_bf16(), 1, bytes), CommError);
}

class ValueLog : public ::testing::TestWithParam<ValueCoding> {
 protected:
  const ValueCodec& codec() const { return value_codec(GetParam()); }

  // Zero or within a factor of two, same sign, and the difference exact in float.
  void expect_recoverable(const std::vector<float>& val) const {
    const std::vector<float> out = recoded(codec(), val);
    for (std::size_t i = 0; i < val.size(); ++i) {
      const float error = val[i] - out[i];
      ASSERT_EQ(double{out[i]} + double{error}, double{val[i]}) << i;
      ASSERT_TRUE(out[i] == 0 || (out[i] > 0) == (val[i] > 0)) << val[i] << ' ' << out[i];
      // Below the smallest normal number any difference is exact.
      if (out[i] != 0 && std::fabs(val[i]) >= 0x1p-126f) {
        ASSERT_LE(std::fabs(out[i]), 2 * std::fabs(double{val[i]}));
        ASSERT_LE(std::fabs(val[i]), 2 * std::fabs(double{out[i]}));
      }
    }
  }
};

TEST_P(ValueLog, recode_one_value_keeps_it_to_8_bits) {
  for (const float v : {1.0f, -3.14159f, 1e-30f, -1e30f, 0x1.FFFFFEp127f, 0x1p-126f}) {
    const std::vector<float> out = recoded(codec(), {v});
    EXPECT_NEAR(out[0] / v, 1, 0x1p-8) << v;
  }
}

TEST_P(ValueLog, recode_equal_magnitudes_keeps_signs) {
  std::vector<float> val;
  for (int i = 0; i < 700; ++i) val.push_back(i % 3 == 0 ? -0.75f : 0.75f);
  EXPECT_EQ(recoded(codec(), val), val);
}

TEST_P(ValueLog, recode_smallest_and_largest_of_a_block_keeps_them) {
  std::vector<float> val{1.5f, -24.0f, 3.1f, 7.7f, 9.9f};
  const std::vector<float> out = recoded(codec(), val);
  EXPECT_EQ(out[0], 1.5f);
  EXPECT_EQ(out[1], -24.0f);
}

TEST_P(ValueLog, recode_zeros_among_values_keeps_them_zero) {
  std::vector<float> val(300, 2.0f);
  val[0] = val[7] = val[299] = 0.0f;
  val[9] = -0.0f;
  EXPECT_EQ(recoded(codec(), val), val);
  EXPECT_EQ(recoded(codec(), std::vector<float>(5, 0.0f)), std::vector<float>(5, 0.0f));
}

TEST_P(ValueLog, recode_any_values_leaves_an_exact_error) {
  Random random(41);
  for (int round = 0; round < 200; ++round) {
    const int spread = static_cast<int>(random() % 250);
    std::vector<float> val(random() % 600);
    for (float& v : val) {
      const int exponent = static_cast<int>(random() % (spread + 1u)) - spread / 2;
      v = std::ldexp(normal_value(random), exponent);
      if (!std::isfinite(v) || random() % 100 == 0) v = 0;
    }
    expect_recoverable(val);
  }
}

TEST_P(ValueLog, recode_denormals_leaves_an_exact_error) {
  std::vector<float> val;
  for (int i = 0; i < 600; ++i) val.push_back(std::ldexp(i % 2 == 0 ? 1.0f : -1.3f, -149 + i / 10));
  expect_recoverable(val);
  expect_recoverable({0x1p-149f, -0x1p-149f});
  expect_recoverable({0x1p-149f, 0x1.FFFFFEp127f, 1.0f});
}

// A sum that cancelled must not spoil the other values of its block.
TEST_P(ValueLog, recode_with_one_tiny_value_keeps_the_error_small) {
  std::vector<float> val = gaussian_tail();
  const double alone = relative_error(codec(), val);
  for (std::size_t i = 0; i < val.size(); i += 256) val[i] = 1e-7f;
  EXPECT_LE(relative_error(codec(), val), 1.3 * alone);
}

TEST_P(ValueLog, recode_with_one_giant_value_keeps_the_others) {
  std::vector<float> val(256, 1.0f);
  val[77] = 300.0f;
  EXPECT_EQ(recoded(codec(), val), val);
}

TEST_P(ValueLog, decode_invalid_scale_throws) {
  const std::vector<std::vector<unsigned>> scales{
      {0x81, 0x3F, 0x80, 0x3F},  // reversed
      {0x80, 0x3F, 0x80, 0x7F},  // infinite
      {0x80, 0x3F, 0x80, 0xBF},  // negative
      {0x7F, 0x00, 0x80, 0x3F},  // denormal
      {0x00, 0x00, 0x00, 0x00},  // zero without a zero level
      {0x00, 0x80, 0x80, 0x3F},  // from zero up
  };
  for (std::vector<unsigned> payload : scales) {
    payload.push_back(0);
    EXPECT_THROW(decoded_values(codec(), 1, payload), CommError);
  }
}

INSTANTIATE_TEST_SUITE_P(Codings, ValueLog, ::testing::Values(ValueCoding::log8, ValueCoding::log4),
                         [](const auto& coding) { return coding.param == ValueCoding::log8 ? "log8" : "log4"; });

TEST(ValueLog4, decode_padding_set_throws) {
  EXPECT_NO_THROW(decoded_values(value_log4(), 1, {0x80, 0x3F, 0x80, 0x40, 0x0F}));
  EXPECT_THROW(decoded_values(value_log4(), 1, {0x80, 0x3F, 0x80, 0x40, 0x1F}), CommError);
}

TEST(ValueLog4, decode_reads_the_low_nibble_first) {
  // From 1 to 128 in 7 steps of two.
  EXPECT_EQ(decoded_values(value_log4(), 3, {0x80, 0x3F, 0x00, 0x43, 0xF1, 0x0A}), (std::vector<float>{2, -128, -4}));
}

TEST(ValueLog8, decode_reads_sign_and_level) {
  EXPECT_EQ(decoded_values(value_log8(), 3, {0x80, 0x3F, 0x80, 0x40, 0x00, 0x7F, 0xFF}),
            (std::vector<float>{1, 4, -4}));
}

TEST(Values, recode_tails_has_the_error_that_is_documented) {
  const struct {
    const ValueCodec& codec;
    double gaussian, laplace, student;
  } rows[] = {{value_bf16(), 0.0017, 0.0018, 0.0018},
              {value_log8(), 0.00125, 0.0020, 0.0050},
              {value_log4(), 0.022, 0.036, 0.087}};
  const std::vector<float> laplace = top_percent(std::exponential_distribution<>());
  const std::vector<float> student = top_percent(std::student_t_distribution<>(3));
  for (const auto& row : rows) {
    EXPECT_LE(relative_error(row.codec, gaussian_tail()), row.gaussian);
    EXPECT_LE(relative_error(row.codec, laplace), row.laplace);
    EXPECT_LE(relative_error(row.codec, student), row.student);
  }
}

}  // namespace
}  // namespace oktopk::testing::values_test
