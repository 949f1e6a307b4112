// SPDX-License-Identifier: Apache-2.0
// Arrays across the border: gradients borrowed from numpy, torch or any DLPack exporter on the
// host, and results handed over as numpy arrays that own their memory.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <span>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/base/gradient.h"

namespace oktopk::python {

// AnyArray takes any type and device, so that unfit arrays are refused in our words.
using AnyArray = nanobind::ndarray<nanobind::c_contig>;

inline FloatType float_type_of(const AnyArray& x, const char* what) {
  const nanobind::dlpack::dtype type = x.dtype();
  require(x.device_type() == nanobind::device::cpu::value, what,
          ": the array is not in host memory, where this build works: copy it there first");
  if (type == nanobind::dtype<float>()) return FloatType::fp32;
  constexpr auto kFloat = static_cast<std::uint8_t>(nanobind::dlpack::dtype_code::Float);
  constexpr auto kBfloat = static_cast<std::uint8_t>(nanobind::dlpack::dtype_code::Bfloat);
  require(type.bits == 16 && (type.code == kFloat || type.code == kBfloat), what, ": the type is of ", int{type.bits},
          " bits, but it must be float32, float16 or bfloat16");
  return type.code == kBfloat ? FloatType::bf16 : FloatType::fp16;
}

inline Gradient as_gradient(const AnyArray& x, const char* what) {
  return {x.data(), x.size(), float_type_of(x, what)};
}

template <class T>
auto to_numpy(std::vector<T>&& values) {
  using Array = nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<1>>;
  auto* owned = new std::vector<T>(std::move(values));
  const nanobind::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return Array(owned->data(), {owned->size()}, owner);
}

template <class T>
auto copy_to_numpy(std::span<const T> values) {
  return to_numpy(std::vector<T>(values.begin(), values.end()));
}

}  // namespace oktopk::python
