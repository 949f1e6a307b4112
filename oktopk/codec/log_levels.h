// SPDX-License-Identifier: Apache-2.0
// The magnitudes that the logarithmic value codings can express in one block: levels of equal ratio from lo to hi,
// optionally with zero in front. They are computed in integers from a base-two logarithm with 16 fraction bits, so
// that every machine gets the same bits. They have 10 significant bits, so that sums of many of them stay exact in
// float. The compiler builds the tables of logarithms and of their inverse. docs/wire_format.md states both tables and
// the levels: changing one of them is a new wire version.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "oktopk/base/error.h"

namespace oktopk {

inline constexpr std::size_t kLogCells = 1024;
inline constexpr unsigned kLogBits = 16;    // fraction bits of a logarithm
inline constexpr unsigned kFloatBits = 23;  // fraction bits of a float

// floor(2^16 * log2(1 + cell / 1024)): one bit per squaring.
constexpr std::uint16_t log2_of_cell(std::size_t cell) {
  std::uint64_t x = (kLogCells + cell) << 21;  // 31 fraction bits
  unsigned result = 0;
  for (unsigned bit = 0; bit < kLogBits; ++bit) {
    x = (x * x) >> 31;
    const bool two_or_more = (x >> 32) != 0;
    result = 2 * result + two_or_more;
    x >>= two_or_more;
  }
  return static_cast<std::uint16_t>(result);
}

inline constexpr auto kLog2 = [] {
  std::array<std::uint16_t, kLogCells> table{};
  for (std::size_t cell = 0; cell < kLogCells; ++cell) table[cell] = log2_of_cell(cell);
  return table;
}();

// lo and hi are positive normal bf16 numbers, lo <= hi; or both zero, with has_zero.
struct LogScale {
  std::uint16_t lo = 0;
  std::uint16_t hi = 0;
  bool has_zero = false;  // level 0 is zero, and lo is level 1
};

// log2(|v|) + 127 with 16 fraction bits, for the bits of a positive normal float. The mantissa is rounded down to 10
// bits.
constexpr std::uint32_t fixed_log2(std::uint32_t bits) {
  return ((bits >> kFloatBits) << kLogBits) | kLog2[(bits >> 13) % kLogCells];
}

// The nearest m with 1 + m / 512 = 2^((cell + 1/2) / 1024): the odd cells of kLog2 are the borders.
inline constexpr auto kExp2 = [] {
  std::array<std::uint16_t, kLogCells> table{};
  std::uint16_t m = 0;
  for (std::size_t cell = 0; cell < kLogCells; ++cell) {
    while (m < kLogCells / 2 && kLog2[2 * m + 1u] <= 64 * cell + 32) ++m;
    table[cell] = m;
  }
  return table;
}();

// The inverse of fixed_log2, with 9 fraction bits. m = 512 carries into the exponent, as it should.
constexpr std::uint32_t exp2_bits(std::uint32_t log) {
  const std::uint32_t m = kExp2[(log >> 6) % kLogCells];
  return ((log >> kLogBits) << kFloatBits) + (m << (kFloatBits - 9));
}

// A level that is lo or hi must be that number: true of every bf16 mantissa.
static_assert([] {
  for (std::uint32_t m = 0; m < 128; ++m) {
    const std::uint32_t bits = (127u << kFloatBits) | (m << 16);
    if (exp2_bits(fixed_log2(bits)) != bits) return false;
  }
  return true;
}());

// Whether an encoder can have written this scale.
inline bool is_valid(LogScale scale) {
  if (scale.lo == 0) return scale.hi == 0 && scale.has_zero;
  return scale.lo >= 0x0080u && scale.lo <= scale.hi && scale.hi < 0x7F80u;
}

inline constexpr std::size_t kMaxLevels = 128;
inline constexpr unsigned kReciprocalBits = 22;
constexpr std::uint32_t reciprocal_of(std::uint32_t steps) { return (1u << kReciprocalBits) / steps + 1; }
constexpr std::uint32_t divide(std::uint32_t x, std::uint32_t reciprocal) {
  return (x * reciprocal) >> kReciprocalBits;
}

// A multiplication divides by any number of steps: x is below steps * steps + steps / 2.
static_assert([] {
  for (std::uint32_t steps = 1; steps < kMaxLevels; ++steps)
    for (std::uint32_t x = steps - 1; x < steps * steps + steps; x += steps) {
      const std::uint32_t q = x / steps;
      if (divide(x, reciprocal_of(steps)) != q || divide(x + 1, reciprocal_of(steps)) != q + 1) return false;
    }
  return true;
}());

// Fills `levels` (at least 3, at most kMaxLevels) in increasing order. Level first + i is at low + floor((span * i +
// floor(steps / 2)) / steps) on the scale of logarithms: span = quotient * steps + remainder, and no level depends on
// another, so that the compiler makes vectors. REQUIRES: is_valid(scale).
inline void fill_levels(LogScale scale, std::span<float> levels) {
  OKTOPK_DCHECK(is_valid(scale));
  if (scale.lo == 0) return std::fill(levels.begin(), levels.end(), 0.0f);
  const std::size_t first = scale.has_zero ? 1 : 0;
  levels.front() = 0;
  const std::uint32_t low = fixed_log2(std::uint32_t{scale.lo} << 16);
  const std::uint32_t span = fixed_log2(std::uint32_t{scale.hi} << 16) - low;
  const auto steps = static_cast<std::uint32_t>(levels.size() - 1 - first);
  const std::uint32_t quotient = span / steps;
  const std::uint32_t remainder = span % steps;
  const std::uint32_t reciprocal = reciprocal_of(steps);
  for (std::uint32_t i = 0; i <= steps; ++i) {
    const std::uint32_t carries = divide(remainder * i + steps / 2, reciprocal);
    levels[first + i] = std::bit_cast<float>(exp2_bits(low + quotient * i + carries));
  }
}

}  // namespace oktopk
