// SPDX-License-Identifier: Apache-2.0
// The inverse of the logarithm, as a table of 1024 numbers with 9 fraction bits that the compiler builds in integer
// arithmetic, and the levels. docs/wire_format.md states both: changing either is a new wire version.
#include "oktopk/codec/log_levels.h"

#include <array>
#include <bit>
#include <cstddef>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

constexpr unsigned kMantissaBits = 9;  // fraction bits of a level

// The nearest m with 1 + m / 512 = 2^((cell + 1/2) / 1024): the odd cells of kLog2 are the borders.
constexpr auto kExp2 = [] {
  std::array<std::uint16_t, kLogCells> table{};
  std::uint16_t m = 0;
  for (std::size_t cell = 0; cell < kLogCells; ++cell) {
    while (m < kLogCells / 2 && kLog2[2 * m + 1u] <= 64 * cell + 32) ++m;
    table[cell] = m;
  }
  return table;
}();

constexpr std::uint32_t exp2_bits(std::uint32_t log) {
  const std::uint32_t exponent = log >> kLogBits;
  // m = 512 carries into the exponent, as it should.
  return (exponent << kFloatBits) +
         (static_cast<std::uint32_t>(kExp2[(log >> 6) % kLogCells]) << (kFloatBits - kMantissaBits));
}

// A level that is lo or hi must be that number: true of every bf16 mantissa.
static_assert([] {
  for (std::uint32_t m = 0; m < 128; ++m) {
    const std::uint32_t bits = (127u << kFloatBits) | (m << 16);
    if (exp2_bits(fixed_log2(bits)) != bits) return false;
  }
  return true;
}());

constexpr unsigned kReciprocalBits = 22;

constexpr std::uint32_t reciprocal_of(std::uint32_t steps) { return (1u << kReciprocalBits) / steps + 1; }

constexpr std::uint32_t divide(std::uint32_t x, std::uint32_t reciprocal) {
  return (x * reciprocal) >> kReciprocalBits;
}

// x is below steps * steps + steps / 2.
static_assert([] {
  for (std::uint32_t steps = 1; steps < kMaxLevels; ++steps) {
    for (std::uint32_t x = steps - 1; x < steps * steps + steps; x += steps) {
      const std::uint32_t q = x / steps;
      if (divide(x, reciprocal_of(steps)) != q) return false;
      if (divide(x + 1, reciprocal_of(steps)) != q + 1) return false;
    }
  }
  return true;
}());

constexpr std::uint32_t widen(std::uint16_t half) { return std::uint32_t{half} << 16; }

}  // namespace

bool is_valid(LogScale scale) {
  if (scale.lo == 0) return scale.hi == 0 && scale.has_zero;
  return scale.lo >= 0x0080u && scale.lo <= scale.hi && scale.hi < 0x7F80u;
}

void fill_levels(LogScale scale, std::span<float> levels) {
  OKTOPK_DCHECK(is_valid(scale));
  const std::size_t first = scale.has_zero ? 1 : 0;
  levels.front() = 0;
  if (scale.lo == 0) {
    for (float& level : levels) level = 0;
    return;
  }
  const std::uint32_t low = fixed_log2(widen(scale.lo));
  const std::uint32_t span = fixed_log2(widen(scale.hi)) - low;
  // Level first + i is at low + floor((span * i + floor(steps / 2)) / steps), without any division:
  // span = quotient * steps + remainder, and the rest is small enough for a reciprocal.
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
