// SPDX-License-Identifier: Apache-2.0
// bfloat16 as 16 bits: sign, 8 exponent bits, 7 fraction bits.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace oktopk {

// Rounds to nearest even, large values to the largest finite bf16. REQUIRES: v finite.
inline std::uint16_t to_bf16(float v) {
  const auto bits = std::bit_cast<std::uint32_t>(v);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t rounded = (magnitude + 0x7FFFu + ((magnitude >> 16) & 1u)) >> 16;
  return static_cast<std::uint16_t>(std::min(rounded, 0x7F7Fu) | ((bits >> 16) & 0x8000u));
}

inline float from_bf16(std::uint16_t half) { return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16); }

}  // namespace oktopk
