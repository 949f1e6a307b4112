// SPDX-License-Identifier: Apache-2.0
// The 16-bit floats of gradients in mixed-precision training. Both widen to float exactly.
#pragma once

#include <bit>
#include <cstdint>

namespace oktopk {

struct Bf16 {
  std::uint16_t bits = 0;  // sign, 8 exponent bits, 7 fraction bits
};

struct Fp16 {
  std::uint16_t bits = 0;  // sign, 5 exponent bits, 10 fraction bits
};

inline float to_float(float x) { return x; }
inline float to_float(Bf16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }

// An exact multiplication: the exponents are 112 apart, and subnormal halves come out right.
inline float to_float(Fp16 x) {
  const std::uint32_t sign = (x.bits & 0x8000U) << 16;
  const std::uint32_t magnitude = (x.bits & 0x7FFFU) << 13;
  constexpr std::uint32_t kInfinity = 0x7C00U << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112F;
  // Infinity and NaN keep their fraction; the multiplication would make them finite.
  const std::uint32_t bits = magnitude >= kInfinity ? magnitude | 0x7F800000U : std::bit_cast<std::uint32_t>(scaled);
  return std::bit_cast<float>(bits | sign);
}

}  // namespace oktopk
