// SPDX-License-Identifier: Apache-2.0
// The magnitudes that the logarithmic value codings can express in one block: `levels` steps of equal ratio from lo to
// hi, optionally with zero in front. They are computed in integers from a base-two logarithm with 16 fraction bits, so
// that every machine gets the same bits; and they have 10 significant bits, so that sums of many of them stay exact in
// float.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace oktopk {

inline constexpr std::size_t kLogCells = 1024;
inline constexpr unsigned kLogBits = 16;    // fraction bits of a logarithm
inline constexpr unsigned kFloatBits = 23;  // fraction bits of a float
inline constexpr std::size_t kMaxLevels = 128;

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

// log2(|v|) + 127 with 16 fraction bits, for the bits of a positive normal float; the mantissa
// counts to 10 bits, rounded down.
constexpr std::uint32_t fixed_log2(std::uint32_t bits) {
  return ((bits >> kFloatBits) << kLogBits) | kLog2[(bits >> 13) % kLogCells];
}

// Whether any decoder may meet this scale.
bool is_valid(LogScale scale);

// Fills `levels` (2 to kMaxLevels) in increasing order. REQUIRES: is_valid(scale).
void fill_levels(LogScale scale, std::span<float> levels);

}  // namespace oktopk
