// SPDX-License-Identifier: Apache-2.0
// The kernels of entries with AVX2, eight lanes at a time. The last few entries go to the scalar kernels. AVX-512 uses
// these, too: draining 16 lanes with its compress instructions was slower on Zen 4, the one machine where it was tried.
#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "oktopk/base/simd.h"
#include "oktopk/cpu/avx2.h"
#include "oktopk/cpu/kernels.h"

namespace oktopk {
namespace avx2 {
namespace {

OKTOPK_AVX2 void store_in_order(CooSink out, __m256i order, __m256i idx, __m256i val) {
  store(out.idx, _mm256_permutevar8x32_epi32(idx, order));
  store(out.val, _mm256_permutevar8x32_epi32(val, order));
}

OKTOPK_AVX2 unsigned mask_of(__m256i lanes) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(lanes)));
}

OKTOPK_AVX2 std::size_t count_of(unsigned mask) { return static_cast<unsigned>(_mm_popcnt_u32(mask)); }

OKTOPK_AVX2 __m256i magnitudes(const float* from) {
  return _mm256_and_si256(load(from), _mm256_set1_epi32(static_cast<int>(kMagnitude)));
}

// Returns a bit for each of 64 groups, set where the group was touched, and clears their bytes.
OKTOPK_AVX2 std::uint64_t take_touched(std::uint8_t* bytes) {
  const __m256i zero = _mm256_setzero_si256();
  const auto low = static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpgt_epi8(load(bytes), zero)));
  const auto high = static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpgt_epi8(load(bytes + 32), zero)));
  store(bytes, zero);
  store(bytes + 32, zero);
  return low | std::uint64_t{high} << 32;
}

OKTOPK_AVX2 std::size_t drain(SumBlock& block, std::size_t words, std::uint32_t begin, CooSink out) {
  const __m256 zero = _mm256_setzero_ps();
  std::size_t to = 0;
  for (std::size_t word = 0; word < words; ++word) {
    std::uint64_t groups = take_touched(block.touched.data() + word * SumBlock::kWordGroups);
    for (; groups != 0; groups = _blsr_u64(groups)) {
      const std::size_t offset = word * SumBlock::kWord + _tzcnt_u64(groups) * SumBlock::kGroup;
      const __m256 x = _mm256_load_ps(&block.value[offset]);
      _mm256_store_ps(&block.value[offset], zero);
      const auto mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(x, zero, _CMP_NEQ_UQ)));
      const __m256i order = set_bits(mask);
      const __m256i first = _mm256_set1_epi32(static_cast<int>(begin + static_cast<std::uint32_t>(offset)));
      store(out.idx + to, _mm256_add_epi32(first, order));
      _mm256_storeu_ps(out.val + to, _mm256_permutevar8x32_ps(x, order));
      to += count_of(mask);
    }
  }
  return to;
}

OKTOPK_AVX2 std::size_t combine_pairs(CooSource sorted, CooSink out) {
  const __m256 zero = _mm256_setzero_ps();
  std::size_t to = 0;
  std::size_t i = 0;
  unsigned second = 0;  // 1: entry i was added to the one before it
  for (; i + 9 <= sorted.size; i += 8) {
    const __m256i idx = load(&sorted.idx[i]);
    const __m256i equal = _mm256_cmpeq_epi32(idx, load(&sorted.idx[i + 1]));
    const __m256 other = _mm256_and_ps(_mm256_castsi256_ps(equal), _mm256_loadu_ps(&sorted.val[i + 1]));
    const __m256 total = _mm256_add_ps(_mm256_loadu_ps(&sorted.val[i]), other);
    const auto nonzero = static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(total, zero, _CMP_NEQ_UQ)));
    const unsigned pairs = mask_of(equal);
    const unsigned mask = nonzero & ~(pairs << 1U | second);
    store_in_order(out + to, set_bits(mask), idx, _mm256_castps_si256(total));
    to += count_of(mask);
    second = pairs >> 7U;
  }
  i += second;
  return to + combine(sorted.from(i), out + to);
}

OKTOPK_AVX2 std::size_t filter(CooSource from, std::uint32_t least, CooSink kept, CooSink dropped) {
  const __m256i below = _mm256_set1_epi32(static_cast<int>(least - 1));
  const bool keep_dropped = dropped.idx != nullptr;
  std::size_t to = 0;
  std::size_t i = 0;
  for (; i + 8 <= from.size; i += 8) {
    const __m256i idx = load(&from.idx[i]);
    const __m256i val = load(&from.val[i]);
    const unsigned mask = mask_of(_mm256_cmpgt_epi32(magnitudes(&from.val[i]), below));
    if (keep_dropped) store_in_order(dropped + (i - to), set_bits(mask ^ 0xffU), idx, val);
    store_in_order(kept + to, set_bits(mask), idx, val);
    to += count_of(mask);
  }
  const CooSink rest = keep_dropped ? dropped + (i - to) : dropped;
  return to + kScalarEntries.filter(from.from(i), least, kept + to, rest);
}

OKTOPK_AVX2 std::size_t collect(std::span<const float> values, std::uint32_t low, std::uint32_t width,
                                std::uint32_t* out) {
  const __m256i base = _mm256_set1_epi32(static_cast<int>(low));
  const __m256i limit = _mm256_set1_epi32(static_cast<int>(width));
  std::size_t to = 0;
  std::size_t i = 0;
  for (; i + 8 <= values.size(); i += 8) {
    const __m256i bits = magnitudes(&values[i]);
    const __m256i offset = _mm256_sub_epi32(bits, base);
    const unsigned mask = mask_of(_mm256_cmpeq_epi32(_mm256_min_epu32(offset, limit), offset));
    if (mask == 0) continue;  // few are collected
    store(out + to, _mm256_permutevar8x32_epi32(bits, set_bits(mask)));
    to += count_of(mask);
  }
  return to + kScalarEntries.collect(values.subspan(i), low, width, out + to);
}

// The lanes of x that are equal to any lane of y: y in all eight rotations.
OKTOPK_AVX2 unsigned members(__m256i x, __m256i y) {
  const __m256i swapped = _mm256_permute2x128_si256(y, y, 1);
  __m256i any = _mm256_or_si256(_mm256_cmpeq_epi32(x, y), _mm256_cmpeq_epi32(x, swapped));
  any = _mm256_or_si256(any, _mm256_cmpeq_epi32(x, _mm256_shuffle_epi32(y, 0x39)));
  any = _mm256_or_si256(any, _mm256_cmpeq_epi32(x, _mm256_shuffle_epi32(y, 0x4e)));
  any = _mm256_or_si256(any, _mm256_cmpeq_epi32(x, _mm256_shuffle_epi32(y, 0x93)));
  any = _mm256_or_si256(any, _mm256_cmpeq_epi32(x, _mm256_shuffle_epi32(swapped, 0x39)));
  any = _mm256_or_si256(any, _mm256_cmpeq_epi32(x, _mm256_shuffle_epi32(swapped, 0x4e)));
  any = _mm256_or_si256(any, _mm256_cmpeq_epi32(x, _mm256_shuffle_epi32(swapped, 0x93)));
  return mask_of(any);
}

OKTOPK_AVX2 std::size_t intersect(CooSource a, std::span<const std::uint32_t> indices, CooSink out) {
  std::size_t i = 0;
  std::size_t j = 0;
  std::size_t to = 0;
  unsigned found = 0;  // of the eight entries at i
  while (i + 8 <= a.size && j + 8 <= indices.size()) {
    const __m256i idx = load(&a.idx[i]);
    found |= members(idx, load(&indices[j]));
    store_in_order(out + to, set_bits(found), idx, load(&a.val[i]));
    const std::uint32_t x = a.idx[i + 7];
    const std::uint32_t y = indices[j + 7];
    const std::size_t done = x <= y ? 8 : 0;
    j += y <= x ? 8 : 0;
    i += done;
    to += done != 0 ? count_of(found) : 0;
    found = done != 0 ? 0 : found;
  }
  if (i == a.size) return to;
  // The entries at i may have met indices before j already: meet them again.
  const auto begin = std::lower_bound(indices.begin(), indices.end(), a.idx[i]);
  return to + kScalarEntries.intersect(a.from(i), {begin, indices.end()}, out + to);
}

}  // namespace
}  // namespace avx2

constexpr EntryKernels kAvx2Entries{48, avx2::drain, avx2::combine_pairs, avx2::filter, avx2::collect, avx2::intersect};

}  // namespace oktopk
