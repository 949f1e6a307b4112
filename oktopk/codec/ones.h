// SPDX-License-Identifier: Apache-2.0
// The positions of the ones of a bit sequence, some at a time.
#pragma once

#include <algorithm>
#include <span>

#include "oktopk/codec/bits.h"
#include "oktopk/codec/kernels.h"

namespace oktopk {

// Lists the ones from bit `at` on, `count` of them or as many as there are; returns how many, and
// leaves `at` behind them. Positions are modulo 2^32. `out` has room for count + kOnesSlack.
inline std::size_t next_ones(std::span<const std::byte> bytes, std::size_t& at, std::size_t count, Index* out) {
  const std::size_t whole = bytes.size() / 8;
  std::size_t word = at / 64;
  std::size_t found = 0;
  const auto list_part = [&](unsigned skipped) {
    const std::size_t size = std::min<std::size_t>(8, bytes.size() - 8 * word);
    const std::uint64_t bits = load_tail(bytes.data() + 8 * word, size) >> skipped << skipped;
    for (std::uint64_t rest = bits; rest != 0; rest &= rest - 1) {
      out[found++] = static_cast<Index>(64 * word + static_cast<unsigned>(std::countr_zero(rest)));
    }
    ++word;
  };
  if (at % 64 != 0) list_part(static_cast<unsigned>(at % 64));
  if (found < count && word < whole) {
    const OnesListed listed = codec_kernels().list_ones(bytes.subspan(8 * word, 8 * (whole - word)),
                                                        static_cast<Index>(64 * word), out + found, count - found);
    found += listed.ones;
    word += listed.words;
  }
  if (found < count && word == whole && bytes.size() % 8 != 0) list_part(0);
  // Ones that were listed in vain all lie in the last word.
  at = found > count ? 64 * (word - 1) + out[count] % 64 : 64 * word;
  return std::min(found, count);
}

}  // namespace oktopk
