// SPDX-License-Identifier: Apache-2.0
#include "oktopk/sparse/sum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

namespace oktopk {
namespace {

constexpr std::uint64_t kBlock = 8192;  // floats: 32 KiB, the L1 cache

struct Block {
  std::array<float, kBlock> value{};
  std::array<std::uint64_t, kBlock / 64> touched{};

  void add(std::uint64_t offset, float x) {
    value[offset] += x;
    touched[offset / 64] |= std::uint64_t{1} << (offset % 64);
  }

  // Moves what was touched to `out`, in index order, and leaves the block zero.
  void drain(std::uint64_t begin, SparseVector& out) {
    for (std::size_t word = 0; word < touched.size(); ++word) {
      for (std::uint64_t bits = touched[word]; bits != 0; bits &= bits - 1) {
        const std::uint64_t offset = word * 64 + static_cast<std::uint64_t>(std::countr_zero(bits));
        if (value[offset] != 0.0F) out.push_back(static_cast<Index>(begin + offset), value[offset]);
        value[offset] = 0.0F;
      }
      touched[word] = 0;
    }
  }
};

}  // namespace

void sum(std::span<const CooView> parts, Range range, SparseVector& out) {
  out.clear();
  Block block;
  std::vector<std::size_t> next(parts.size(), 0);
  constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
  // Jump from one occupied block to the next: sparse inputs over a huge range stay O(entries).
  while (true) {
    std::uint64_t smallest = kNone;
    for (std::size_t p = 0; p < parts.size(); ++p)
      if (next[p] < parts[p].size())
        smallest = std::min<std::uint64_t>(smallest, parts[p].idx[next[p]]);
    if (smallest == kNone) return;
    const std::uint64_t begin = range.begin + (smallest - range.begin) / kBlock * kBlock;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const CooView& v = parts[p];
      std::size_t at = next[p];
      for (; at < v.size() && v.idx[at] < begin + kBlock; ++at)
        block.add(v.idx[at] - begin, v.val[at]);
      next[p] = at;
    }
    block.drain(begin, out);
  }
}

}  // namespace oktopk
