// SPDX-License-Identifier: Apache-2.0
// The kernels of codings and elements with AVX2 (8 lanes) and AVX-512 (16 lanes), and the dispatch on x86-64. Most are
// loops.h and passes.h compiled for the level. Prefix sums are made by shifts inside a register, positions of ones come
// from a table with a row per byte. Codings have AVX-512 variants of the three kernels that gain from it.
#include <immintrin.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "oktopk/base/gradient.h"
#include "oktopk/base/simd.h"
#include "oktopk/cpu/avx2.h"
#include "oktopk/cpu/bits.h"
#include "oktopk/cpu/kernels.h"

namespace oktopk {
namespace avx512 {
namespace {

constexpr unsigned kRowLanes = 16;

struct Lanes {
  static constexpr std::size_t kWidth = 16;
  using Floats = __m512;
  using Ints = __m512i;
  using Mask = std::uint16_t;
  // Plain forms of some intrinsics start from a value that GCC 12 takes for uninitialised.
  static constexpr __mmask16 kAll = 0xffff;

  OKTOPK_AVX512 static Floats load(const float* x) { return _mm512_loadu_ps(x); }
  OKTOPK_AVX512 static void store(float* x, Floats v) { _mm512_storeu_ps(x, v); }

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
};

#define OKTOPK_TARGET OKTOPK_AVX512
#include "oktopk/cpu/loops.h"
#include "oktopk/cpu/passes.h"
#undef OKTOPK_TARGET

}  // namespace
}  // namespace avx512

namespace avx2 {
namespace {

constexpr unsigned kRowLanes = 8;

struct Lanes {
  static constexpr std::size_t kWidth = 8;
  using Floats = __m256;
  using Ints = __m256i;
  using Mask = std::uint8_t;

  OKTOPK_AVX2 static Floats load(const float* x) { return _mm256_loadu_ps(x); }
  OKTOPK_AVX2 static void store(float* x, Floats v) { _mm256_storeu_ps(x, v); }

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
};

#define OKTOPK_TARGET OKTOPK_AVX2
#include "oktopk/cpu/loops.h"
#include "oktopk/cpu/passes.h"
#undef OKTOPK_TARGET

// Inclusive, over the 8 lanes.
OKTOPK_AVX2 inline __m256i prefix_sums(__m256i x) {
  x = _mm256_add_epi32(x, _mm256_slli_si256(x, 4));
  x = _mm256_add_epi32(x, _mm256_slli_si256(x, 8));
  const __m256i lower = _mm256_permute2x128_si256(x, x, 0x08);  // in the upper half; zeros below
  return _mm256_add_epi32(x, _mm256_shuffle_epi32(lower, 0xFF));
}

OKTOPK_AVX2 inline __m256i broadcast_last(__m256i x) { return _mm256_permutevar8x32_epi32(x, _mm256_set1_epi32(7)); }

// The two halves of a row of 16 fields, each plus one.
struct TwoHalves {
  __m256i lower;
  __m256i upper;
};

OKTOPK_AVX2 inline void shift_right(TwoHalves& row, const std::byte* from, unsigned bits) {
  const __m128i count = _mm_cvtsi32_si128(static_cast<int>(bits));
  row.lower = _mm256_srl_epi32(load(from), count);
  row.upper = _mm256_srl_epi32(load(from + 32), count);
}

OKTOPK_AVX2 inline void add_left(TwoHalves& row, const std::byte* from, unsigned bits) {
  const __m128i count = _mm_cvtsi32_si128(static_cast<int>(bits));
  row.lower = _mm256_or_si256(row.lower, _mm256_sll_epi32(load(from), count));
  row.upper = _mm256_or_si256(row.upper, _mm256_sll_epi32(load(from + 32), count));
}

// The chain from row to row is an addition per half: sums inside a row do not wait for it.
OKTOPK_AVX2 void unpack_gaps(const std::byte* from, unsigned width, std::uint32_t next, std::uint32_t* out) {
  if (width == 0) {
    for (std::size_t i = 0; i < kFieldBlock; ++i) out[i] = next + static_cast<std::uint32_t>(i);
    return;
  }
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(low_mask(width)));
  const __m256i one = _mm256_set1_epi32(1);
  __m256i before = _mm256_set1_epi32(static_cast<int>(next - 1));
  unsigned used = 0;
  for (std::size_t i = 0; i < kFieldBlock; i += kFieldLanes) {
    TwoHalves row;
    shift_right(row, from, used);
    used += width;
    if (used >= 32) {
      used -= 32;
      from += sizeof(std::uint32_t) * kFieldLanes;
      if (used != 0) add_left(row, from, width - used);
    }
    row.lower = prefix_sums(_mm256_add_epi32(_mm256_and_si256(row.lower, mask), one));
    row.upper = prefix_sums(_mm256_add_epi32(_mm256_and_si256(row.upper, mask), one));
    const __m256i middle = _mm256_add_epi32(before, broadcast_last(row.lower));
    store(out + i, _mm256_add_epi32(row.lower, before));
    store(out + i + kRowLanes, _mm256_add_epi32(row.upper, middle));
    before = _mm256_add_epi32(middle, broadcast_last(row.upper));
  }
}

// Sparse words take the first branch, dense ones the second: either way it is well predicted.
OKTOPK_AVX2 OnesListed list_ones(std::span<const std::byte> words, std::uint32_t base, std::uint32_t* out,
                                 std::size_t room) {
  constexpr unsigned kFew = 3;
  std::size_t ones = 0;
  std::size_t read = 0;
  for (; 8 * read < words.size() && ones < room; ++read, base += 64) {
    std::uint64_t word = load_u64(words.data() + 8 * read);
    const auto count = static_cast<std::size_t>(_mm_popcnt_u64(word));
    if (count <= kFew) {
      for (unsigned i = 0; i < kFew; ++i, word &= word - 1) {
        out[ones + i] = base + static_cast<std::uint32_t>(_tzcnt_u64(word));
      }
      ones += count;
      continue;
    }
    for (std::uint32_t bit = 0; bit < 64; bit += 8) {
      const std::uint64_t byte = (word >> bit) & 0xFFu;
      const __m256i start = _mm256_set1_epi32(static_cast<int>(base + bit));
      store(out + ones, _mm256_add_epi32(set_bits(byte), start));
      ones += static_cast<std::size_t>(_mm_popcnt_u64(byte));
    }
  }
  return {ones, read};
}

// Sets bits of zeros at increasing positions.
class OnesWriter {
 public:
  explicit OnesWriter(std::byte* out) : out_(out) {}

  // Ors `bits` to the 64 bits at `position`, which must not decrease from call to call. Writes two
  // whole words, up to 15 bytes further than the last one.
  void set(std::size_t position, std::uint64_t bits) {
    const std::size_t at = position / 64;
    const unsigned shift = position % 64;
    const std::uint64_t before = at == at_ + 1 ? upper_ : 0;
    const std::uint64_t upper = at == at_ ? upper_ : 0;
    lower_ = (at == at_ ? lower_ : before) | bits << shift;
    upper_ = upper | bits >> 1 >> (63 - shift);
    at_ = at;
    std::memcpy(out_ + 8 * at, &lower_, sizeof lower_);
    std::memcpy(out_ + 8 * at + 8, &upper_, sizeof upper_);
  }

 private:
  std::byte* out_;
  std::size_t at_ = 0;
  std::uint64_t lower_ = 0;  // the words at_ and at_ + 1
  std::uint64_t upper_ = 0;
};

// The or of 1 << shift over the lanes; shifts are below 64.
OKTOPK_AVX2 inline std::uint64_t bits_at(__m256i shifts) {
  const __m256i one = _mm256_set1_epi32(1);
  const __m256i low = _mm256_sllv_epi32(one, shifts);  // no bit for shifts of 32 and more
  const __m256i high = _mm256_sllv_epi32(one, _mm256_sub_epi32(shifts, _mm256_set1_epi32(32)));
  const __m256i four = _mm256_or_si256(_mm256_unpacklo_epi32(low, high), _mm256_unpackhi_epi32(low, high));
  const __m128i two = _mm_or_si128(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
  return static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm_or_si128(two, _mm_srli_si128(two, 8))));
}

// Eight ones at a time, as long as they lie within 64 bits, which at 2 to 3 bits each they almost
// always do; their word is split over two of the output.
OKTOPK_AVX2 void set_high_bits(const LowPart& low, const std::uint32_t* idx, std::size_t count, std::byte* out) {
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(low.width));
  const __m256i begin = _mm256_set1_epi32(static_cast<int>(low.begin));
  const __m256i count_up = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  OnesWriter writer(out);
  std::size_t i = 0;
  for (; i + kRowLanes <= count; i += kRowLanes) {
    const std::size_t first = ((idx[i] - low.begin) >> low.width) + i;
    const std::size_t last = ((idx[i + 7] - low.begin) >> low.width) + i + 7;
    if (last - first >= 64) {
      for (std::size_t j = i; j < i + kRowLanes; ++j) {
        writer.set(((idx[j] - low.begin) >> low.width) + j, 1);
      }
      continue;
    }
    const __m256i relative = _mm256_sub_epi32(load(idx + i), begin);
    const __m256i parts = _mm256_add_epi32(_mm256_srl_epi32(relative, shift), count_up);
    const __m256i start = _mm256_set1_epi32(static_cast<int>(first - i));
    writer.set(first, bits_at(_mm256_sub_epi32(parts, start)));
  }
  for (; i < count; ++i) writer.set(((idx[i] - low.begin) >> low.width) + i, 1);
}

}  // namespace
}  // namespace avx2

static constexpr CodingKernels kAvx2Codings{avx2::increases,        avx2::gaps,        avx2::pack,
                                            avx2::unpack,           avx2::unpack_gaps, avx2::list_ones,
                                            avx2::set_high_bits,    avx2::join,        avx2::to_bf16,
                                            avx2::read_bf16<false>, avx2::split_bf16,  avx2::read_bf16<true>,
                                            avx2::extremes,         avx2::log_codes};

static constexpr CodingKernels kAvx512Codings = [] {
  CodingKernels codings = kAvx2Codings;
  codings.pack = avx512::pack;
  codings.unpack = avx512::unpack;
  codings.log_codes = avx512::log_codes;
  return codings;
}();

const Kernels& kernels(SimdLevel level) {
  static constexpr std::array<Kernels, 3> kByLevel = {{
      {kScalarEntries, kScalarCodings, kScalarElements},
      {kAvx2Entries, kAvx2Codings, avx2::kElements},
      {kAvx2Entries, kAvx512Codings, avx512::kElements},
  }};
  return kByLevel[static_cast<std::size_t>(level)];
}

}  // namespace oktopk
