// SPDX-License-Identifier: Apache-2.0
// The floating types in which gradients come: float, and the 16-bit floats of mixed-precision training, which widen to
// float exactly. Gradient borrows a gradient in the type it was computed in; kernels widen it on the fly, and
// everything after the accumulator is float.
#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ranges>

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

// Magnitudes are compared as the bits of |x|. That is the order of the numbers, with infinities and then NaNs on top.
inline constexpr std::uint32_t kMagnitude = 0x7fffffffU;
inline std::uint32_t magnitude_bits(float x) { return std::bit_cast<std::uint32_t>(x) & kMagnitude; }

// Rounds to nearest even, large values to the largest finite bf16. REQUIRES: x finite.
inline Bf16 to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = magnitude_bits(x);
  const std::uint32_t rounded = (magnitude + 0x7FFFU + ((magnitude >> 16) & 1U)) >> 16;
  return {static_cast<std::uint16_t>(std::min(rounded, 0x7F7FU) | ((bits >> 16) & 0x8000U))};
}

class Gradient {
 public:
  Gradient() = default;
  // Any span, vector or array of float, Bf16 or Fp16.
  template <class Values>
  requires std::ranges::contiguous_range<Values> && IsFloat<std::ranges::range_value_t<Values>> Gradient(
      const Values& x)
      : Gradient(std::ranges::data(x), std::ranges::size(x), float_type<std::ranges::range_value_t<Values>>()) {}
  // REQUIRES: `data` points to `size` elements of `type`.
  Gradient(const void* data, std::size_t size, FloatType type) : data_(data), size_(size), type_(type) {}

  FloatType type() const { return type_; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  template <class T>  // REQUIRES: T is the type
  const T* as() const {
    return static_cast<const T*>(data_);
  }

  // visit(const T*) with the type that the elements have.
  template <class Visit>
  auto dispatch(const Visit& visit) const {
    if (type_ == FloatType::bf16) return visit(as<Bf16>());
    if (type_ == FloatType::fp16) return visit(as<Fp16>());
    return visit(as<float>());
  }

  float operator[](std::size_t i) const {
    return dispatch([i](const auto* x) { return to_float(x[i]); });
  }

  Gradient subspan(std::size_t first, std::size_t count) const {
    return {static_cast<const std::byte*>(data_) + first * size_of(type_), count, type_};
  }

 private:
  const void* data_ = nullptr;
  std::size_t size_ = 0;
  FloatType type_ = FloatType::fp32;
};

}  // namespace oktopk
