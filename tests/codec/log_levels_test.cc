// SPDX-License-Identifier: Apache-2.0
#include "oktopk/codec/log_levels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "oktopk/base/gradient.h"

namespace oktopk::log_levels_test {
namespace {

std::vector<float> levels_of(LogScale scale, std::size_t count) {
  std::vector<float> levels(count);
  fill_levels(scale, levels);
  return levels;
}

TEST(LogLevels, logarithm_is_that_of_the_mathematicians) {
  for (std::size_t cell = 0; cell < kLogCells; ++cell) {
    const double exact = 65536 * std::log2(1 + static_cast<double>(cell) / 1024);
    EXPECT_NEAR(kLog2[cell], exact, 1.01) << cell;
    EXPECT_LE(kLog2[cell], exact) << cell;
  }
}

// Steps of equal ratio, up to 10 significant bits and the resolution of the table.
TEST(LogLevels, fill_any_scale_is_geometric_from_lo_to_hi) {
  for (const std::size_t count : {8u, 128u}) {
    for (const bool has_zero : {false, true}) {
      for (unsigned lo = 0x0080; lo < 0x7F80; lo += 37) {
        for (unsigned hi = lo; hi < 0x7F80 && hi < lo + 1400; hi += 211) {
          const LogScale scale{static_cast<std::uint16_t>(lo), static_cast<std::uint16_t>(hi), has_zero};
          const auto levels = levels_of(scale, count);
          const double low = to_float(Bf16{scale.lo});
          const double ratio = double{to_float(Bf16{scale.hi})} / low;
          const std::size_t first = has_zero ? 1 : 0;
          const auto steps = static_cast<double>(count - 1 - first);
          ASSERT_EQ(levels.back(), to_float(Bf16{scale.hi}));
          ASSERT_EQ(levels[first], to_float(Bf16{scale.lo}));
          for (std::size_t l = first; l < count; ++l) {
            const double ideal = low * std::pow(ratio, static_cast<double>(l - first) / steps);
            ASSERT_NEAR(levels[l] / ideal, 1, 0.0016) << lo << ' ' << hi << ' ' << l;
            ASSERT_EQ(std::bit_cast<std::uint32_t>(levels[l]) & 0x3FFFu, 0u);
          }
        }
      }
    }
  }
}

TEST(LogLevels, fill_with_zero_puts_it_first) {
  const auto levels = levels_of({0x3F80, 0x4080, true}, 8);
  EXPECT_EQ(levels[0], 0);
  EXPECT_EQ(levels[1], 1);
  EXPECT_EQ(levels[4], 2);
  EXPECT_EQ(levels[7], 4);
}

TEST(LogLevels, fill_scale_of_zeros_is_zero) { EXPECT_EQ(levels_of({0, 0, true}, 8), std::vector<float>(8, 0.0f)); }

// The wire format fixes these bits; a change of them is a new version.
TEST(LogLevels, fill_known_scale_gives_known_bits) {
  const auto levels = levels_of({0x3F80, 0x40A0, false}, 8);  // 1 to 5
  EXPECT_EQ(levels,
            (std::vector<float>{1, 1.2578125f, 1.583984375f, 1.9921875f, 2.5078125f, 3.15625f, 3.97265625f, 5}));
}

TEST(LogLevels, validity_excludes_denormals_infinities_and_reversal) {
  EXPECT_TRUE(is_valid({0x0080, 0x7F7F, false}));
  EXPECT_TRUE(is_valid({0x3F80, 0x3F80, false}));
  EXPECT_FALSE(is_valid({0x007F, 0x3F80, false}));
  EXPECT_FALSE(is_valid({0x3F80, 0x7F80, false}));
  EXPECT_FALSE(is_valid({0x3F81, 0x3F80, false}));
  EXPECT_FALSE(is_valid({0x3F80, 0xBF80, false}));
  EXPECT_FALSE(is_valid({0, 0x3F80, true}));
  EXPECT_FALSE(is_valid({0, 0, false}));
  EXPECT_TRUE(is_valid({0, 0, true}));
}

}  // namespace
}  // namespace oktopk::log_levels_test
