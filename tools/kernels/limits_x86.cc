// SPDX-License-Identifier: Apache-2.0
// The passes of limits.h in AVX2 and AVX-512, four vectors at a time. No prefetch: where these were
// written it only cost time. Tails go through the plain loops.
#include <immintrin.h>

#include <array>

#include "oktopk/base/simd.h"
#include "tools/kernels/limits.h"

namespace oktopk {
namespace {

OKTOPK_AVX2 inline __m256 load_avx2(const float* x) { return _mm256_loadu_ps(x); }
OKTOPK_AVX2 inline __m256 load_avx2(const Bf16* x) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
OKTOPK_AVX2 inline __m256 load_avx2(const Fp16* x) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
}

// Masked by nothing: without a mask, GCC 12 warns of its own headers.
constexpr __mmask16 kAll = 0xFFFF;
OKTOPK_AVX512 inline __m512 load_avx512(const float* x) { return _mm512_loadu_ps(x); }
OKTOPK_AVX512 inline __m512 load_avx512(const Bf16* x) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  const __m512i wide = _mm512_maskz_cvtepu16_epi32(kAll, half);
  return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAll, wide, 16));
}
OKTOPK_AVX512 inline __m512 load_avx512(const Fp16* x) {
  return _mm512_maskz_cvtph_ps(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
}

void finish_axpy(float* y, const float* x, float a, std::size_t n) { plain_limit_passes().axpy_fp32(y, x, a, n); }
void finish_axpy(float* y, const Bf16* x, float a, std::size_t n) { plain_limit_passes().axpy_bf16(y, x, a, n); }
void finish_axpy(float* y, const Fp16* x, float a, std::size_t n) { plain_limit_passes().axpy_fp16(y, x, a, n); }

// The loops stand twice, because a target cannot be a parameter of a template.
template <class T>
OKTOPK_AVX2 void axpy_avx2(float* y, const T* x, float a, std::size_t n) {
  constexpr std::size_t kLanes = 8, kStep = 4 * kLanes;
  const __m256 factor = _mm256_set1_ps(a);
  std::size_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    for (std::size_t j = i; j < i + kStep; j += kLanes) {
      const __m256 product = _mm256_mul_ps(factor, load_avx2(x + j));
      _mm256_storeu_ps(y + j, _mm256_add_ps(_mm256_loadu_ps(y + j), product));
    }
  }
  finish_axpy(y + i, x + i, a, n - i);
}

template <class T>
OKTOPK_AVX512 void axpy_avx512(float* y, const T* x, float a, std::size_t n) {
  constexpr std::size_t kLanes = 16, kStep = 4 * kLanes;
  const __m512 factor = _mm512_set1_ps(a);
  std::size_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    for (std::size_t j = i; j < i + kStep; j += kLanes) {
      const __m512 product = _mm512_mul_ps(factor, load_avx512(x + j));
      _mm512_storeu_ps(y + j, _mm512_add_ps(_mm512_loadu_ps(y + j), product));
    }
  }
  finish_axpy(y + i, x + i, a, n - i);
}

OKTOPK_AVX2 float read_avx2(const float* x, std::size_t n) {
  constexpr std::size_t kLanes = 8, kStep = 4 * kLanes;
  __m256 sums[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
  std::size_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    for (std::size_t j = 0; j < 4; ++j) sums[j] = _mm256_add_ps(sums[j], _mm256_loadu_ps(x + i + j * kLanes));
  }
  alignas(32) float lanes[kStep];
  for (std::size_t j = 0; j < 4; ++j) _mm256_store_ps(lanes + j * kLanes, sums[j]);
  return plain_limit_passes().read(lanes, kStep) + plain_limit_passes().read(x + i, n - i);
}

OKTOPK_AVX512 float read_avx512(const float* x, std::size_t n) {
  constexpr std::size_t kLanes = 16, kStep = 4 * kLanes;
  __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
  std::size_t i = 0;
  for (; i + kStep <= n; i += kStep)
    for (std::size_t j = 0; j < 4; ++j) {
      sums[j] = _mm512_add_ps(sums[j], _mm512_loadu_ps(x + i + j * kLanes));
    }
  alignas(64) float lanes[kStep];
  for (std::size_t j = 0; j < 4; ++j) _mm512_store_ps(lanes + j * kLanes, sums[j]);
  return plain_limit_passes().read(lanes, kStep) + plain_limit_passes().read(x + i, n - i);
}

}  // namespace

std::span<const LimitPasses> limit_variants() {
  static const std::array<LimitPasses, 3> variants = {
      {plain_limit_passes(),
       {axpy_avx2<float>, axpy_avx2<Bf16>, axpy_avx2<Fp16>, read_avx2},
       {axpy_avx512<float>, axpy_avx512<Bf16>, axpy_avx512<Fp16>, read_avx512}}};
  return std::span(variants).first(simd_levels().size());
}

}  // namespace oktopk
