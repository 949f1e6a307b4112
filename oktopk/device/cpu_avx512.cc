// SPDX-License-Identifier: Apache-2.0
// The kernels of cpu_passes.h with 16 lanes.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "oktopk/device/cpu_emit.h"
#include "oktopk/device/cpu_kernels.h"

namespace oktopk {
namespace {

struct Lanes {
  static constexpr std::size_t kWidth = 16;
  using Floats = __m512;
  using Ints = __m512i;
  using Mask = std::uint16_t;
  // Plain forms of some intrinsics start from a value that GCC 12 takes for uninitialised.
  static constexpr __mmask16 kAll = 0xffff;

  OKTOPK_AVX512 static Floats load(const float* x) { return _mm512_loadu_ps(x); }
  OKTOPK_AVX512 static void store(float* x, Floats v) { _mm512_storeu_ps(x, v); }
  OKTOPK_AVX512 static Floats all(float x) { return _mm512_set1_ps(x); }
  OKTOPK_AVX512 static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  OKTOPK_AVX512 static Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }

  OKTOPK_AVX512 static Floats widen(const float* x) { return load(x); }
  OKTOPK_AVX512 static Floats widen(const Bf16* x) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAll, _mm512_maskz_cvtepu16_epi32(kAll, bits), 16));
  }
  OKTOPK_AVX512 static Floats widen(const Fp16* x) {
    return _mm512_maskz_cvtph_ps(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
  }

  OKTOPK_AVX512 static Ints bound(std::uint32_t bits) { return _mm512_set1_epi32(static_cast<int>(bits)); }
  OKTOPK_AVX512 static Mask at_least(Floats x, Ints bound) {
    const Ints magnitude = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(kMagnitude));
    return _mm512_cmpge_epu32_mask(magnitude, bound);
  }

  // Whether any of the n elements has all bits of `exponent`. REQUIRES: whole vectors.
  template <class T>
  OKTOPK_AVX512 static bool any_full(const T* x, std::size_t n, std::uint32_t exponent) {
    const Ints full = _mm512_set1_epi32(static_cast<int>(exponent));
    __mmask32 found = 0;
    for (std::size_t i = 0; i < n; i += 64 / sizeof(T)) {
      const Ints bits = _mm512_and_si512(_mm512_loadu_si512(x + i), full);
      if constexpr (sizeof(T) == 4) {
        found |= _mm512_cmpeq_epi32_mask(bits, full);
      } else {
        found |= _mm512_cmpeq_epi16_mask(bits, full);
      }
    }
    return found != 0;
  }

  OKTOPK_AVX512 static void add_moments(const float* x, std::size_t n, MomentLanes& lanes) {
    __m512d sum[2];
    __m512d squares[2];
    for (int h = 0; h < 2; ++h) {
      sum[h] = _mm512_loadu_pd(lanes.sum.data() + 8 * h);
      squares[h] = _mm512_loadu_pd(lanes.squares.data() + 8 * h);
    }
    for (std::size_t i = 0; i < n; i += 16)
      for (int h = 0; h < 2; ++h) {
        const __m512d v = _mm512_maskz_cvtps_pd(0xff, _mm256_loadu_ps(x + i + 8 * h));
        sum[h] = _mm512_add_pd(sum[h], v);
        squares[h] = _mm512_add_pd(squares[h], _mm512_mul_pd(v, v));
      }
    for (int h = 0; h < 2; ++h) {
      _mm512_storeu_pd(lanes.sum.data() + 8 * h, sum[h]);
      _mm512_storeu_pd(lanes.squares.data() + 8 * h, squares[h]);
    }
  }
};

#define OKTOPK_TARGET OKTOPK_AVX512
#include "oktopk/device/cpu_passes.h"

}  // namespace

const CpuKernels& cpu_kernels_avx512() { return kKernels; }

}  // namespace oktopk
