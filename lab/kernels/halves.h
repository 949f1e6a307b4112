// SPDX-License-Identifier: Apache-2.0
// Values in 16 bits, for data and not for arithmetic: rounded towards zero.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "oktopk/base/gradient.h"

namespace oktopk {

// A number beyond half's range becomes zero or the largest.
inline Fp16 truncate_to_fp16(float v) {
  const auto bits = std::bit_cast<std::uint32_t>(v);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  constexpr std::uint32_t kLeast = 113U << 23U, kRebase = 112U << 23U;
  const std::uint32_t half = magnitude < kLeast ? 0 : std::min((magnitude - kRebase) >> 13U, 0x7BFFU);
  return {static_cast<std::uint16_t>(half | ((bits >> 16U) & 0x8000U))};
}

inline Bf16 truncate_to_bf16(float v) { return {static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v) >> 16U)}; }

}  // namespace oktopk
