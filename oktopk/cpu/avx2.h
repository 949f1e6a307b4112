// SPDX-License-Identifier: Apache-2.0
// Parts that the AVX2 kernels share: unaligned loads and stores, and the table of set bits. AVX-512 compresses lanes
// with an instruction; here a permutation from this table of 2 KiB does it.
#pragma once

#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "oktopk/base/simd.h"

namespace oktopk::avx2 {

// Byte j of row `mask` is the position of the mask's j-th set bit; bytes behind the last are zero.
inline constexpr auto kSetBits = [] {
  std::array<std::uint64_t, 256> table{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    unsigned ones = 0;
    for (std::uint64_t bit = 0; bit < 8; ++bit)
      if ((mask >> bit & 1U) != 0) table[mask] |= bit << (8 * ones++);
  }
  return table;
}();

// The positions of the set bits of `mask`: also the permutation that brings its lanes to the front.
OKTOPK_AVX2 inline __m256i set_bits(std::uint64_t mask) {
  return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(kSetBits[mask])));
}

OKTOPK_AVX2 inline __m256i load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }

OKTOPK_AVX2 inline void store(void* to, __m256i lanes) { _mm256_storeu_si256(static_cast<__m256i*>(to), lanes); }

}  // namespace oktopk::avx2
