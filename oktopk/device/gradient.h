// SPDX-License-Identifier: Apache-2.0
// A borrowed gradient in the type it was computed in: float, bfloat16 or half. Kernels widen it on the fly; everything
// after the accumulator is float.
#pragma once

#include <cstddef>
#include <ranges>

#include "oktopk/base/half.h"

namespace oktopk {

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
    switch (type_) {
      case FloatType::bf16:
        return visit(as<Bf16>());
      case FloatType::fp16:
        return visit(as<Fp16>());
      case FloatType::fp32:
        break;
    }
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
