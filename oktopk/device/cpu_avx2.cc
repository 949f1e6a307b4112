// SPDX-License-Identifier: Apache-2.0
// The kernels of cpu_passes.h with 8 lanes.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "oktopk/device/cpu_emit.h"
#include "oktopk/device/cpu_kernels.h"

namespace oktopk {
namespace {

struct Lanes {
  static constexpr std::size_t kWidth = 8;
  using Floats = __m256;
  using Ints = __m256i;
  using Mask = std::uint8_t;

  OKTOPK_AVX2 static Floats load(const float* x) { return _mm256_loadu_ps(x); }
  OKTOPK_AVX2 static void store(float* x, Floats v) { _mm256_storeu_ps(x, v); }
  OKTOPK_AVX2 static Floats all(float x) { return _mm256_set1_ps(x); }
  OKTOPK_AVX2 static Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  OKTOPK_AVX2 static Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }

  OKTOPK_AVX2 static Floats widen(const float* x) { return load(x); }
  OKTOPK_AVX2 static Floats widen(const Bf16* x) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  OKTOPK_AVX2 static Floats widen(const Fp16* x) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
  }

  // The comparison is signed and has no "or equal": magnitudes have no sign, and bounds are not 0.
  OKTOPK_AVX2 static Ints bound(std::uint32_t bits) { return _mm256_set1_epi32(static_cast<int>(bits - 1)); }
  OKTOPK_AVX2 static Mask at_least(Floats x, Ints bound) {
    const Ints magnitude = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(kMagnitude));
    const Ints passed = _mm256_cmpgt_epi32(magnitude, bound);
    return static_cast<Mask>(_mm256_movemask_ps(_mm256_castsi256_ps(passed)));
  }

  // Whether any of the n elements has all bits of `exponent`. REQUIRES: whole vectors.
  template <class T>
  OKTOPK_AVX2 static bool any_full(const T* x, std::size_t n, std::uint32_t exponent) {
    const Ints full = _mm256_set1_epi32(static_cast<int>(exponent));
    Ints found = _mm256_setzero_si256();
    for (std::size_t i = 0; i < n; i += 32 / sizeof(T)) {
      const Ints bits = _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const Ints*>(x + i)), full);
      if constexpr (sizeof(T) == 4) {
        found = _mm256_or_si256(found, _mm256_cmpeq_epi32(bits, full));
      } else {
        found = _mm256_or_si256(found, _mm256_cmpeq_epi16(bits, full));
      }
    }
    return _mm256_testz_si256(found, found) == 0;
  }

  OKTOPK_AVX2 static void add_moments(const float* x, std::size_t n, MomentLanes& lanes) {
    __m256d sum[4];
    __m256d squares[4];
    for (int q = 0; q < 4; ++q) {
      sum[q] = _mm256_loadu_pd(lanes.sum.data() + 4 * q);
      squares[q] = _mm256_loadu_pd(lanes.squares.data() + 4 * q);
    }
    for (std::size_t i = 0; i < n; i += 16)
      for (int q = 0; q < 4; ++q) {
        const __m256d v = _mm256_cvtps_pd(_mm_loadu_ps(x + i + 4 * q));
        sum[q] = _mm256_add_pd(sum[q], v);
        squares[q] = _mm256_add_pd(squares[q], _mm256_mul_pd(v, v));
      }
    for (int q = 0; q < 4; ++q) {
      _mm256_storeu_pd(lanes.sum.data() + 4 * q, sum[q]);
      _mm256_storeu_pd(lanes.squares.data() + 4 * q, squares[q]);
    }
  }
};

#define OKTOPK_TARGET OKTOPK_AVX2
#include "oktopk/device/cpu_passes.h"

}  // namespace

const CpuKernels& cpu_kernels_avx2() { return kKernels; }

}  // namespace oktopk
