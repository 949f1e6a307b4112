// SPDX-License-Identifier: Apache-2.0
// The reference that the variants must equal. No branch depends on the data where the data are
// random: a wrong guess costs more than a store that is overwritten.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "oktopk/sparse/kernels.h"
#include "oktopk/sparse/merge.h"

namespace oktopk {
namespace {

// One bit per byte, of 64 bytes that are 0 or 1; they are 0 then.
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

std::size_t drain(SumBlock& block, std::size_t words, Index begin, CooSink out) {
  std::size_t to = 0;
  for (std::size_t word = 0; word < words; ++word) {
    std::uint64_t groups = take_bits(block.touched.data() + word * SumBlock::kWordGroups);
    for (; groups != 0; groups &= groups - 1) {
      const std::size_t first =
          word * SumBlock::kWord + static_cast<std::size_t>(std::countr_zero(groups)) * SumBlock::kGroup;
      for (std::size_t offset = first; offset < first + SumBlock::kGroup; ++offset) {
        const float x = block.value[offset];
        out.idx[to] = begin + static_cast<Index>(offset);
        out.val[to] = x;
        to += magnitude_bits(x) != 0;
      }
      std::fill_n(block.value.begin() + static_cast<std::ptrdiff_t>(first), SumBlock::kGroup, 0.0F);
    }
  }
  return to;
}

std::size_t filter(CooView from, std::uint32_t least, CooSink kept, CooSink dropped) {
  std::size_t to = 0;
  if (dropped.idx == nullptr) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      const float x = from.val[i];
      kept.idx[to] = from.idx[i];
      kept.val[to] = x;
      to += magnitude_bits(x) >= least;
    }
    return to;
  }
  for (std::size_t i = 0; i < from.size(); ++i) {
    const Index index = from.idx[i];
    const float x = from.val[i];
    kept.idx[to] = index;
    kept.val[to] = x;
    dropped.idx[i - to] = index;
    dropped.val[i - to] = x;
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

std::pair<std::uint32_t, std::uint32_t> extremes(std::span<const float> values) {
  std::int32_t low = std::numeric_limits<std::int32_t>::max();
  std::int32_t high = 0;
  for (const float x : values) {  // signed: the comparison that every machine has
    const auto bits = static_cast<std::int32_t>(magnitude_bits(x));
    low = std::min(low, bits);
    high = std::max(high, bits);
  }
  return {static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(high)};
}

std::size_t intersect(CooView a, std::span<const Index> indices, CooSink out) {
  std::size_t i = 0;
  std::size_t j = 0;
  std::size_t to = 0;
  // Each step takes at most one of each: so many are safe without looking for an end.
  for (std::size_t steps = std::min(a.size(), indices.size()); steps != 0;
       steps = std::min(a.size() - i, indices.size() - j)) {
    for (; steps != 0; --steps) {
      const Index x = a.idx[i];
      const Index y = indices[j];
      out.idx[to] = x;
      out.val[to] = a.val[i];
      to += x == y;
      i += x <= y;
      j += y < x;
    }
  }
  return to;
}

}  // namespace

const SparseKernels kScalarKernels = {.dense_block = 512,
                                      .drain = drain,
                                      .combine_pairs = combine,
                                      .filter = filter,
                                      .collect = collect,
                                      .extremes = extremes,
                                      .intersect = intersect};

}  // namespace oktopk
