// SPDX-License-Identifier: Apache-2.0
// Eight lanes at a time; what AVX-512 compresses with an instruction, a permutation from a table of
// 2 KiB does here. The last few entries go to the scalar kernels.
#include <immintrin.h>

#include "oktopk/sparse/kernels.h"

namespace oktopk {
namespace {

using CompressTable = std::array<std::array<std::uint8_t, 8>, 256>;

// Byte j of row `mask` is the lane of its j-th set bit.
constexpr CompressTable make_compress_table() {
  CompressTable table{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    std::size_t to = 0;
    for (std::uint8_t lane = 0; lane < 8; ++lane)
      if ((mask >> lane & 1U) != 0) table[mask][to++] = lane;
  }
  return table;
}

constexpr CompressTable kCompress = make_compress_table();

// The permutation that brings the lanes of `mask` to the front.
OKTOPK_AVX2 __m256i compress_order(unsigned mask) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(kCompress[mask].data())));
}

OKTOPK_AVX2 __m256i load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }

OKTOPK_AVX2 void store(void* to, __m256i lanes) { _mm256_storeu_si256(static_cast<__m256i*>(to), lanes); }

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

// Which of 64 groups were touched; none is afterwards.
OKTOPK_AVX2 std::uint64_t take_touched(std::uint8_t* bytes) {
  const __m256i zero = _mm256_setzero_si256();
  const auto low = static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpgt_epi8(load(bytes), zero)));
  const auto high = static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpgt_epi8(load(bytes + 32), zero)));
  store(bytes, zero);
  store(bytes + 32, zero);
  return low | std::uint64_t{high} << 32;
}

OKTOPK_AVX2 std::size_t drain(SumBlock& block, std::size_t words, Index begin, CooSink out) {
  const __m256 zero = _mm256_setzero_ps();
  std::size_t to = 0;
  for (std::size_t word = 0; word < words; ++word) {
    std::uint64_t groups = take_touched(block.touched.data() + word * SumBlock::kWordGroups);
    for (; groups != 0; groups = _blsr_u64(groups)) {
      const std::size_t offset = word * SumBlock::kWord + _tzcnt_u64(groups) * SumBlock::kGroup;
      const __m256 x = _mm256_load_ps(&block.value[offset]);
      _mm256_store_ps(&block.value[offset], zero);
      const auto mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(x, zero, _CMP_NEQ_UQ)));
      const __m256i order = compress_order(mask);
      const __m256i first = _mm256_set1_epi32(static_cast<int>(begin + static_cast<Index>(offset)));
      store(out.idx + to, _mm256_add_epi32(first, order));
      _mm256_storeu_ps(out.val + to, _mm256_permutevar8x32_ps(x, order));
      to += count_of(mask);
    }
  }
  return to;
}

OKTOPK_AVX2 std::size_t combine_pairs(CooView sorted, CooSink out) {
  const __m256 zero = _mm256_setzero_ps();
  std::size_t to = 0;
  std::size_t i = 0;
  unsigned second = 0;  // 1: entry i was added to the one before it
  for (; i + 9 <= sorted.size(); i += 8) {
    const __m256i idx = load(&sorted.idx[i]);
    const __m256i equal = _mm256_cmpeq_epi32(idx, load(&sorted.idx[i + 1]));
    const __m256 other = _mm256_and_ps(_mm256_castsi256_ps(equal), _mm256_loadu_ps(&sorted.val[i + 1]));
    const __m256 total = _mm256_add_ps(_mm256_loadu_ps(&sorted.val[i]), other);
    const auto nonzero = static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(total, zero, _CMP_NEQ_UQ)));
    const unsigned pairs = mask_of(equal);
    const unsigned mask = nonzero & ~(pairs << 1U | second);
    store_in_order(out + to, compress_order(mask), idx, _mm256_castps_si256(total));
    to += count_of(mask);
    second = pairs >> 7U;
  }
  i += second;
  return to + kScalarKernels.combine_pairs(sorted.slice(i, sorted.size() - i), out + to);
}

OKTOPK_AVX2 std::size_t filter(CooView from, std::uint32_t least, CooSink kept, CooSink dropped) {
  const __m256i below = _mm256_set1_epi32(static_cast<int>(least - 1));
  const bool keep_dropped = dropped.idx != nullptr;
  std::size_t to = 0;
  std::size_t i = 0;
  for (; i + 8 <= from.size(); i += 8) {
    const __m256i idx = load(&from.idx[i]);
    const __m256i val = load(&from.val[i]);
    const unsigned mask = mask_of(_mm256_cmpgt_epi32(magnitudes(&from.val[i]), below));
    if (keep_dropped) store_in_order(dropped + (i - to), compress_order(mask ^ 0xffU), idx, val);
    store_in_order(kept + to, compress_order(mask), idx, val);
    to += count_of(mask);
  }
  const CooSink rest = keep_dropped ? dropped + (i - to) : dropped;
  return to + kScalarKernels.filter(from.slice(i, from.size() - i), least, kept + to, rest);
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
    store(out + to, _mm256_permutevar8x32_epi32(bits, compress_order(mask)));
    to += count_of(mask);
  }
  return to + kScalarKernels.collect(values.subspan(i), low, width, out + to);
}

OKTOPK_AVX2 std::pair<std::uint32_t, std::uint32_t> extremes(std::span<const float> values) {
  if (values.size() < 8) return kScalarKernels.extremes(values);
  __m256i low = magnitudes(values.data());
  __m256i high = low;
  for (std::size_t i = 8; i + 8 <= values.size(); i += 8) {
    const __m256i bits = magnitudes(&values[i]);
    low = _mm256_min_epu32(low, bits);
    high = _mm256_max_epu32(high, bits);
  }
  const __m256i last = magnitudes(values.data() + values.size() - 8);  // some for the second time
  std::array<std::uint32_t, 8> lows;
  std::array<std::uint32_t, 8> highs;
  store(lows.data(), _mm256_min_epu32(low, last));
  store(highs.data(), _mm256_max_epu32(high, last));
  return {*std::min_element(lows.begin(), lows.end()), *std::max_element(highs.begin(), highs.end())};
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

OKTOPK_AVX2 std::size_t intersect(CooView a, std::span<const Index> indices, CooSink out) {
  std::size_t i = 0;
  std::size_t j = 0;
  std::size_t to = 0;
  unsigned found = 0;  // of the eight entries at i
  while (i + 8 <= a.size() && j + 8 <= indices.size()) {
    const __m256i idx = load(&a.idx[i]);
    found |= members(idx, load(&indices[j]));
    store_in_order(out + to, compress_order(found), idx, load(&a.val[i]));
    const Index x = a.idx[i + 7];
    const Index y = indices[j + 7];
    const std::size_t done = x <= y ? 8 : 0;
    j += y <= x ? 8 : 0;
    i += done;
    to += done != 0 ? count_of(found) : 0;
    found = done != 0 ? 0 : found;
  }
  if (i == a.size()) return to;
  // The entries at i may have met indices before j already: meet them again.
  const auto begin = std::lower_bound(indices.begin(), indices.end(), a.idx[i]);
  return to + kScalarKernels.intersect(a.slice(i, a.size() - i), {begin, indices.end()}, out + to);
}

}  // namespace

const SparseKernels& avx2_kernels() {
  static constexpr SparseKernels kKernels = {.dense_block = 48,
                                             .drain = drain,
                                             .combine_pairs = combine_pairs,
                                             .filter = filter,
                                             .collect = collect,
                                             .extremes = extremes,
                                             .intersect = intersect};
  return kKernels;
}

}  // namespace oktopk
