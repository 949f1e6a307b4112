// SPDX-License-Identifier: Apache-2.0
// The kernels for AVX2: the common bodies compiled for it, prefix sums by shifts inside a register,
// positions of ones from a table with a row per byte.
#include <immintrin.h>

#include <array>

#include "oktopk/base/simd.h"
#include "oktopk/codec/bits.h"
#include "oktopk/codec/kernel_bodies.h"

namespace oktopk {
namespace {

constexpr unsigned kLanes = 8;

OKTOPK_AVX2 bool increasing(const Index* idx, std::size_t count) { return bodies::increasing(idx, count); }

OKTOPK_AVX2 Index gaps(const Index* idx, Index next, Index* gaps) { return bodies::gaps(idx, next, gaps); }

OKTOPK_AVX2 void pack(const std::uint32_t* fields, unsigned width, std::byte* out) {
  bodies::pack<kLanes>(fields, width, out);
}

OKTOPK_AVX2 void unpack(const std::byte* from, unsigned width, std::uint32_t* fields) {
  bodies::unpack<kLanes>(from, width, fields);
}

OKTOPK_AVX2 void join(const HighBits& high, Index* low, std::size_t count) { bodies::join(high, low, count); }

OKTOPK_AVX2 void to_bf16(const float* val, std::size_t count, std::byte* out) { bodies::to_bf16(val, count, out); }

OKTOPK_AVX2 bool from_bf16(const std::byte* from, std::size_t count, float* val) {
  return bodies::from_bf16(from, count, val);
}

OKTOPK_AVX2 bool split_bf16(float* val, std::size_t count, std::byte* out) {
  return bodies::split_bf16(val, count, out);
}

OKTOPK_AVX2 bool add_bf16(const std::byte* from, std::size_t count, float* sum) {
  return bodies::add_bf16(from, count, sum);
}

OKTOPK_AVX2 Extremes extremes(const float* val, std::size_t count, std::int32_t floor) {
  return bodies::extremes(val, count, floor);
}

OKTOPK_AVX2 void log_codes(const LogQuantiser& q, const float* val, std::size_t count, std::uint8_t* codes) {
  bodies::log_codes(q, val, count, codes);
}

OKTOPK_AVX2 inline __m256i load(const std::byte* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

OKTOPK_AVX2 inline void store(Index* to, __m256i x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x); }

// Inclusive, over the 8 lanes.
OKTOPK_AVX2 inline __m256i prefix_sums(__m256i x) {
  x = _mm256_add_epi32(x, _mm256_slli_si256(x, 4));
  x = _mm256_add_epi32(x, _mm256_slli_si256(x, 8));
  const __m256i lower = _mm256_permute2x128_si256(x, x, 0x08);  // in the upper half; zeros below
  return _mm256_add_epi32(x, _mm256_shuffle_epi32(lower, 0xFF));
}

OKTOPK_AVX2 inline __m256i broadcast_last(__m256i x) { return _mm256_permutevar8x32_epi32(x, _mm256_set1_epi32(7)); }

// The two halves of a row of 16 fields, each plus one.
struct Row {
  __m256i lower;
  __m256i upper;
};

OKTOPK_AVX2 inline void shift_right(Row& row, const std::byte* from, unsigned bits) {
  const __m128i count = _mm_cvtsi32_si128(static_cast<int>(bits));
  row.lower = _mm256_srl_epi32(load(from), count);
  row.upper = _mm256_srl_epi32(load(from + 32), count);
}

OKTOPK_AVX2 inline void add_left(Row& row, const std::byte* from, unsigned bits) {
  const __m128i count = _mm_cvtsi32_si128(static_cast<int>(bits));
  row.lower = _mm256_or_si256(row.lower, _mm256_sll_epi32(load(from), count));
  row.upper = _mm256_or_si256(row.upper, _mm256_sll_epi32(load(from + 32), count));
}

// The chain from row to row is an addition per half: sums inside a row do not wait for it.
OKTOPK_AVX2 void unpack_gaps(const std::byte* from, unsigned width, Index next, Index* out) {
  if (width == 0) {
    for (std::size_t i = 0; i < kFieldBlock; ++i) out[i] = next + static_cast<Index>(i);
    return;
  }
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(low_mask(width)));
  const __m256i one = _mm256_set1_epi32(1);
  __m256i before = _mm256_set1_epi32(static_cast<int>(next - 1));
  unsigned used = 0;
  for (std::size_t i = 0; i < kFieldBlock; i += kFieldLanes) {
    Row row;
    shift_right(row, from, used);
    used += width;
    if (used >= 32) {
      used -= 32;
      from += sizeof(Index) * kFieldLanes;
      if (used != 0) add_left(row, from, width - used);
    }
    row.lower = prefix_sums(_mm256_add_epi32(_mm256_and_si256(row.lower, mask), one));
    row.upper = prefix_sums(_mm256_add_epi32(_mm256_and_si256(row.upper, mask), one));
    const __m256i middle = _mm256_add_epi32(before, broadcast_last(row.lower));
    store(out + i, _mm256_add_epi32(row.lower, before));
    store(out + i + kLanes, _mm256_add_epi32(row.upper, middle));
    before = _mm256_add_epi32(middle, broadcast_last(row.upper));
  }
}

// The positions of the ones of a byte, then anything.
constexpr auto kOnesOfByte = [] {
  std::array<std::uint64_t, 256> table{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    unsigned ones = 0;
    for (std::uint64_t bit = 0; bit < 8; ++bit) {
      if ((byte >> bit & 1u) != 0) table[byte] |= bit << (8 * ones++);
    }
  }
  return table;
}();

// Sparse words take the first branch, dense ones the second: either way it is well predicted.
OKTOPK_AVX2 OnesListed list_ones(std::span<const std::byte> words, Index base, Index* out, std::size_t room) {
  constexpr unsigned kFew = 3;
  std::size_t ones = 0;
  std::size_t read = 0;
  for (; 8 * read < words.size() && ones < room; ++read, base += 64) {
    std::uint64_t word = load_u64(words.data() + 8 * read);
    const auto count = static_cast<std::size_t>(_mm_popcnt_u64(word));
    if (count <= kFew) {
      for (unsigned i = 0; i < kFew; ++i, word &= word - 1) {
        out[ones + i] = base + static_cast<Index>(_tzcnt_u64(word));
      }
      ones += count;
      continue;
    }
    for (Index bit = 0; bit < 64; bit += 8) {
      const std::uint64_t byte = (word >> bit) & 0xFFu;
      const __m128i row = _mm_cvtsi64_si128(static_cast<long long>(kOnesOfByte[byte]));
      const __m256i start = _mm256_set1_epi32(static_cast<int>(base + bit));
      store(out + ones, _mm256_add_epi32(_mm256_cvtepu8_epi32(row), start));
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
OKTOPK_AVX2 void set_high_bits(const LowPart& low, const Index* idx, std::size_t count, std::byte* out) {
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(low.width));
  const __m256i begin = _mm256_set1_epi32(static_cast<int>(low.begin));
  const __m256i count_up = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  OnesWriter writer(out);
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const std::size_t first = ((idx[i] - low.begin) >> low.width) + i;
    const std::size_t last = ((idx[i + 7] - low.begin) >> low.width) + i + 7;
    if (last - first >= 64) {
      for (std::size_t j = i; j < i + kLanes; ++j) {
        writer.set(((idx[j] - low.begin) >> low.width) + j, 1);
      }
      continue;
    }
    const __m256i relative = _mm256_sub_epi32(load(reinterpret_cast<const std::byte*>(idx + i)), begin);
    const __m256i parts = _mm256_add_epi32(_mm256_srl_epi32(relative, shift), count_up);
    const __m256i start = _mm256_set1_epi32(static_cast<int>(first - i));
    writer.set(first, bits_at(_mm256_sub_epi32(parts, start)));
  }
  for (; i < count; ++i) writer.set(((idx[i] - low.begin) >> low.width) + i, 1);
}

constexpr CodecKernels kAvx2{.increasing = increasing,
                             .gaps = gaps,
                             .pack = pack,
                             .unpack = unpack,
                             .unpack_gaps = unpack_gaps,
                             .list_ones = list_ones,
                             .set_high_bits = set_high_bits,
                             .join = join,
                             .to_bf16 = to_bf16,
                             .from_bf16 = from_bf16,
                             .split_bf16 = split_bf16,
                             .add_bf16 = add_bf16,
                             .extremes = extremes,
                             .log_codes = log_codes};

}  // namespace

const CodecKernels& codec_kernels_avx2() { return kAvx2; }

}  // namespace oktopk
