// SPDX-License-Identifier: Apache-2.0
// The loops of limits.h, compiled for AVX2 and AVX-512.
#include <array>

#include "oktopk/base/simd.h"
#include "tools/kernels/limits.h"

namespace oktopk {
namespace {

template <class T>
OKTOPK_AVX2 void axpy_avx2(float* y, const T* x, float a, std::size_t n) {
  axpy_loop(y, x, a, n);
}
template <class T>
OKTOPK_AVX512 void axpy_avx512(float* y, const T* x, float a, std::size_t n) {
  axpy_loop(y, x, a, n);
}
OKTOPK_AVX2 float read_avx2(const float* x, std::size_t n) { return read_loop(x, n); }
OKTOPK_AVX512 float read_avx512(const float* x, std::size_t n) { return read_loop(x, n); }

}  // namespace

std::span<const LimitPasses> limit_variants() {
  static const std::array<LimitPasses, 3> variants = {
      {plain_limit_passes(),
       {axpy_avx2<float>, axpy_avx2<Bf16>, axpy_avx2<Fp16>, read_avx2},
       {axpy_avx512<float>, axpy_avx512<Bf16>, axpy_avx512<Fp16>, read_avx512}}};
  return std::span(variants).first(simd_levels().size());
}

}  // namespace oktopk
