// SPDX-License-Identifier: Apache-2.0
// The floating types in which gradients come: float, and the 16-bit floats of mixed-precision training. Both widen to
// float exactly.
#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>

namespace oktopk {

struct Bf16 {
  std::uint16_t bits = 0;  // sign, 8 exponent bits, 7 fraction bits
};

struct Fp16 {
  std::uint16_t bits = 0;  // sign, 5 exponent bits, 10 fraction bits
};

enum class FloatType : std::uint8_t { fp32, bf16, fp16 };

constexpr std::size_t size_of(FloatType type) { return type == FloatType::fp32 ? 4 : 2; }

template <class T>
concept IsFloat = std::same_as<T, float> || std::same_as<T, Bf16> || std::same_as<T, Fp16>;

template <IsFloat T>
constexpr FloatType float_type() {
  return std::same_as<T, float> ? FloatType::fp32 : std::same_as<T, Bf16> ? FloatType::bf16 : FloatType::fp16;
}

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

// Rounds to nearest even, large values to the largest finite bf16. REQUIRES: x finite.
inline Bf16 to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  const std::uint32_t rounded = (magnitude + 0x7FFFU + ((magnitude >> 16) & 1U)) >> 16;
  return {static_cast<std::uint16_t>(std::min(rounded, 0x7F7FU) | ((bits >> 16) & 0x8000U))};
}

}  // namespace oktopk
