// SPDX-License-Identifier: Apache-2.0
// The small headers of this folder: memory, errors, halves, the hash and the version.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>

#include "oktopk/base/bytes.h"
#include "oktopk/base/error.h"
#include "oktopk/base/gradient.h"
#include "oktopk/base/hash.h"
#include "oktopk/base/version.h"
#include "tests/support/message.h"

namespace oktopk::base_test {
namespace {

// Uninitialised memory keeps its elements when it grows, and honours values that are given.
TEST(Uninitialised, resize_growing_keeps_the_old_elements) {
  Uninitialised<int> v = {1, 2, 3};
  v.resize(100000);
  EXPECT_EQ(v[0], 1);
  EXPECT_EQ(v[2], 3);
}

TEST(Uninitialised, resize_within_capacity_does_not_touch_new_elements) {
  Uninitialised<int> v = {1, 2, 3};
  v.resize(1);
  v.resize(3);
  EXPECT_EQ(v[1], 2);
  EXPECT_EQ(v[2], 3);
}

TEST(Uninitialised, resize_and_assign_with_a_value_write_it) {
  Uninitialised<int> v;
  v.assign(5, 7);
  v.resize(9, 8);
  EXPECT_EQ(v, (Uninitialised<int>{7, 7, 7, 7, 7, 8, 8, 8, 8}));
}

TEST(Error, require_that_holds_does_nothing) { EXPECT_NO_THROW(require(true, "unused")); }

TEST(Error, require_that_fails_throws_usage_error_with_all_parts) {
  EXPECT_EQ(message_of<UsageError>([] { require(false, "k = ", 7, ", but n = ", 2.5, '!'); }), "k = 7, but n = 2.5!");
}

TEST(Error, fail_throws_the_class_asked_for) {
  EXPECT_EQ(message_of<CommError>([] { fail<CommError>("rank ", 3); }), "rank 3");
  EXPECT_EQ(message_of<DeviceError>([] { fail<DeviceError>("gpu"); }), "gpu");
}

TEST(Error, classes_do_not_catch_each_other) {
  static_assert(!std::is_base_of_v<UsageError, CommError>);
  static_assert(!std::is_base_of_v<CommError, DeviceError>);
  static_assert(!std::is_base_of_v<CommError, UsageError>);
  static_assert(std::is_base_of_v<std::exception, UsageError>);
  static_assert(std::is_base_of_v<std::runtime_error, CommError>);
}

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

// The hash travels on the wire and in fingerprints.
TEST(Hash, values_are_pinned) {
  EXPECT_EQ(hash_text(""), 0xecba3df2c3383c52U);
  EXPECT_EQ(hash_text("oktopk"), 0x7c946be2e27de51eU);
  EXPECT_EQ(hash_text("oktopk", 7), 0xf4cc1cc2fb8dab33U);
}

TEST(Hash, every_flipped_bit_changes_many_bits) {
  std::array<std::byte, 24> bytes{};
  const std::uint64_t before = hash_bytes(bytes);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    const int changed = std::popcount(before ^ hash_bytes(bytes));
    EXPECT_GE(changed, 12) << "bit " << bit;
    EXPECT_NE(static_cast<std::uint32_t>(before), static_cast<std::uint32_t>(hash_bytes(bytes)));
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

TEST(Hash, order_and_length_count) {
  EXPECT_NE(hash_text("ab"), hash_text("ba"));
  EXPECT_NE(hash_text("a"), hash_text(std::string_view("a\0", 2)));
  EXPECT_NE(hash_text("a", 1), hash_text("a", 2));
}

TEST(Version, library_has_three_numbers) {
  EXPECT_EQ(std::ranges::count(library_version(), '.'), 2) << library_version();
}

}  // namespace
}  // namespace oktopk::base_test
