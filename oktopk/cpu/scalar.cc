// SPDX-License-Identifier: Apache-2.0
// The scalar kernels: the reference that all levels equal, and what they use for the rest that fills no vector. No
// branch depends on the data where the data are random: a wrong guess costs more than a store that is overwritten.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "oktopk/cpu/bits.h"
#include "oktopk/cpu/kernels.h"

namespace oktopk {
namespace scalar {
namespace {

constexpr unsigned kRowLanes = 4;  // every 64-bit processor has such registers
#define OKTOPK_TARGET
#include "oktopk/cpu/loops.h"
#undef OKTOPK_TARGET

// Packs 64 bytes, each 0 or 1, into the bits of one word, and sets the bytes to zero.
std::uint64_t take_bits(std::uint8_t* bytes) {
  std::uint64_t bits = 0;
  for (unsigned eight = 0; eight < 8; ++eight) {
    std::uint64_t ones = 0;
    std::memcpy(&ones, bytes + eight * 8, 8);
    bits |= (ones * 0x0102040810204080U >> 56) << (eight * 8);
  }
  std::memset(bytes, 0, 64);
  return bits;
}

std::size_t drain(SumBlock& block, std::size_t words, std::uint32_t begin, CooSink out) {
  std::size_t to = 0;
  for (std::size_t word = 0; word < words; ++word) {
    std::uint64_t groups = take_bits(block.touched.data() + word * SumBlock::kWordGroups);
    for (; groups != 0; groups &= groups - 1) {
      const std::size_t first =
          word * SumBlock::kWord + static_cast<std::size_t>(std::countr_zero(groups)) * SumBlock::kGroup;
      for (std::size_t offset = first; offset < first + SumBlock::kGroup; ++offset) {
        const float x = block.value[offset];
        out.idx[to] = begin + static_cast<std::uint32_t>(offset);
        out.val[to] = x;
        to += magnitude_bits(x) != 0;
      }
      std::fill_n(block.value.begin() + static_cast<std::ptrdiff_t>(first), SumBlock::kGroup, 0.0F);
    }
  }
  return to;
}

std::size_t filter(CooSource from, std::uint32_t least, CooSink kept, CooSink dropped) {
  std::uint32_t idx_nowhere = 0;
  float val_nowhere = 0;
  const std::size_t step = dropped.idx == nullptr ? 0 : 1;
  if (step == 0) dropped = {&idx_nowhere, &val_nowhere};
  std::size_t to = 0;
  for (std::size_t i = 0; i < from.size; ++i) {
    const std::uint32_t index = from.idx[i];
    const float x = from.val[i];
    kept.idx[to] = index;
    kept.val[to] = x;
    dropped.idx[step * (i - to)] = index;
    dropped.val[step * (i - to)] = x;
    to += magnitude_bits(x) >= least;
  }
  return to;
}

std::size_t collect(std::span<const float> values, std::uint32_t low, std::uint32_t width, std::uint32_t* out) {
  std::size_t to = 0;
  for (const float x : values) {
    out[to] = magnitude_bits(x);
    to += magnitude_bits(x) - low <= width;
  }
  return to;
}

std::size_t intersect(CooSource a, std::span<const std::uint32_t> indices, CooSink out) {
  std::size_t i = 0;
  std::size_t j = 0;
  std::size_t to = 0;
  // Each step takes at most one of each: so many are safe without looking for an end.
  for (std::size_t steps = std::min(a.size, indices.size()); steps != 0;
       steps = std::min(a.size - i, indices.size() - j)) {
    for (; steps != 0; --steps) {
      const std::uint32_t x = a.idx[i];
      const std::uint32_t y = indices[j];
      out.idx[to] = x;
      out.val[to] = a.val[i];
      to += x == y;
      i += x <= y;
      j += y < x;
    }
  }
  return to;
}

void unpack_gaps(const std::byte* from, unsigned width, std::uint32_t next, std::uint32_t* out) {
  unpack(from, width, out);
  for (std::size_t i = 0; i < kFieldBlock; ++i) {
    next += out[i];
    out[i] = next++;
  }
}

OnesListed list_ones(std::span<const std::byte> words, std::uint32_t base, std::uint32_t* out, std::size_t room) {
  std::size_t ones = 0;
  std::size_t read = 0;
  for (; 8 * read < words.size() && ones < room; ++read, base += 64) {
    for (std::uint64_t word = load_u64(words.data() + 8 * read); word != 0; word &= word - 1) {
      out[ones++] = base + static_cast<std::uint32_t>(std::countr_zero(word));
    }
  }
  return {ones, read};
}

void set_high_bits(const LowPart& low, const std::uint32_t* idx, std::size_t count, std::byte* out) {
  set_ones(count, out, [&](std::size_t i) { return ((idx[i] - low.begin) >> low.width) + i; });
}

void mark(std::span<const float> x, std::uint32_t bound, std::uint64_t* marks) {
  for (std::size_t i = 0; i < x.size(); i += 64) {
    std::uint64_t word = 0;
    for (std::size_t j = i; j < std::min(i + 64, x.size()); ++j)
      word |= static_cast<std::uint64_t>(magnitude_bits(x[j]) >= bound) << (j - i);
    marks[i / 64] = word;
  }
}

template <class T>
void accumulate_mark(std::span<float> acc, const Addend& add, std::uint32_t bound, std::uint64_t* marks) {
  accumulate<T>(acc, add);
  mark(acc, bound, marks);
}

}  // namespace
}  // namespace scalar

std::size_t combine(CooSource sorted, CooSink out) {
  if (sorted.size == 0) return 0;
  std::size_t to = 0;
  std::uint32_t current = sorted.idx[0];
  float total = sorted.val[0];
  const auto put = [&](bool complete) {
    out.idx[to] = current;
    out.val[to] = total;
    to += complete & (magnitude_bits(total) != 0);
  };
  for (std::size_t i = 1; i < sorted.size; ++i) {
    const std::uint32_t next = sorted.idx[i];
    const float x = sorted.val[i];
    const bool same = next == current;
    put(!same);
    total = same ? total + x : x;
    current = next;
  }
  put(true);
  return to;
}

constexpr EntryKernels kScalarEntries{512, scalar::drain, combine, scalar::filter, scalar::collect, scalar::intersect};

constexpr CodingKernels kScalarCodings{scalar::increases,        scalar::gaps,        scalar::pack,
                                       scalar::unpack,           scalar::unpack_gaps, scalar::list_ones,
                                       scalar::set_high_bits,    scalar::join,        scalar::to_bf16,
                                       scalar::read_bf16<false>, scalar::split_bf16,  scalar::read_bf16<true>,
                                       scalar::extremes,         scalar::log_codes};

constexpr ElementKernels kScalarElements{
    scalar::mark,       {scalar::accumulate_mark<float>, scalar::accumulate_mark<Bf16>, scalar::accumulate_mark<Fp16>},
    scalar::emit,       {scalar::accumulate<float>, scalar::accumulate<Bf16>, scalar::accumulate<Fp16>},
    scalar::multiply,   {scalar::first_nonfinite<float>, scalar::first_nonfinite<Bf16>, scalar::first_nonfinite<Fp16>},
    scalar::add_moments};

}  // namespace oktopk
