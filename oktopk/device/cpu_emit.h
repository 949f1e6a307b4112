// SPDX-License-Identifier: Apache-2.0
// Writes the marked elements of a tile: the one loop of a selecting pass that is not about vectors.
// Always inlined, so that each level compiles it with its own bit instructions.
//
// Words of marks that are not zero are queued without a branch; most have one or two ones, which
// are written without asking. COST: about 1 ns per entry.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "oktopk/device/cpu_kernels.h"

namespace oktopk {

inline __attribute__((always_inline)) std::size_t emit_marked(const float* tile, const Marks& marks, const Target& to,
                                                              Following next) {
  std::array<std::uint32_t, kTile / 64 + 1> queue;
  std::size_t queued = 0;
  for (std::uint32_t w = 0; w < marks.size(); ++w) {
    queue[queued] = w;
    queued += static_cast<std::size_t>(marks[w] != 0);
  }
  std::size_t count = 0;
  for (std::size_t q = 0; q < queued; ++q) {
    next.prefetch();
    const std::uint32_t first = 64 * queue[q];
    std::uint64_t word = marks[queue[q]];
    const auto ones = static_cast<std::size_t>(std::popcount(word));
    Index* const idx = to.idx + count;
    float* const val = to.val + count;
    std::uint32_t i = first + static_cast<std::uint32_t>(std::countr_zero(word));
    idx[0] = to.base + i;
    val[0] = tile[i];
    word &= word - 1;
    i = first + static_cast<std::uint32_t>(std::countr_zero(word)) % 64;
    idx[1] = to.base + i;
    val[1] = tile[i];
    word &= word - 1;
    for (std::size_t at = 2; word != 0; ++at, word &= word - 1) {
      i = first + static_cast<std::uint32_t>(std::countr_zero(word));
      idx[at] = to.base + i;
      val[at] = tile[i];
    }
    count += ones;
  }
  return count;
}

}  // namespace oktopk
