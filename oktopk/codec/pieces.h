// SPDX-License-Identifier: Apache-2.0
// Parts that the index codings share: pieces that stay in the nearest cache while they are checked, packed fields in
// blocks of 512, and the ones of a bit sequence.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "oktopk/base/error.h"
#include "oktopk/codec/coding.h"
#include "oktopk/cpu/bits.h"
#include "oktopk/cpu/kernels.h"

namespace oktopk {

// Calls decode(piece, first) for parts of `out` of kFieldBlock indices, which stay in the nearest cache while they are
// decoded and checked. The last part may be shorter; `first` is the number of the part's first index.
template <class Decode>
void for_each_piece(std::span<Index> out, Decode decode) {
  for (std::size_t first = 0; first < out.size(); first += kFieldBlock)
    decode(out.subspan(first, std::min(kFieldBlock, out.size() - first)), first);
}

// Throws CommError unless the decoded indices of a piece increase and lie in [next, range.end); returns one past the
// last. Indices that wrapped around are found, too: they lie below `next`, or break the order.
inline Index accept(std::span<const Index> piece, Range range, Index next, const char* coding) {
  if (!increases(piece) || piece.front() < next) fail<CommError>(coding, ": the indices are not increasing");
  if (piece.back() >= range.end)
    fail<CommError>(coding, ": index ", piece.back(), " is not in [", range.begin, ", ", range.end, ")");
  return piece.back() + 1;
}

// A full block of fields is packed in 16 lanes, for vector code; a shorter one field after field, so that it takes no
// more bytes than it needs. Writes bytes_for_bits(fields.size() * width) bytes.
inline void pack_block(std::span<const std::uint32_t> fields, unsigned width, std::byte* out) {
  if (fields.size() == kFieldBlock) return kernels().codings.pack(fields.data(), width, out);
  pack_bits(fields.size(), width, out, [&](std::size_t i) { return fields[i]; });
}

// REQUIRES: from.size() == bytes_for_bits(out.size() * width).
inline void unpack_block(std::span<const std::byte> from, unsigned width, std::span<std::uint32_t> out) {
  if (out.size() == kFieldBlock) return kernels().codings.unpack(from.data(), width, out.data());
  unpack_bits(from, width, out);
}

// Lists the positions, modulo 2^32, of `count` ones from bit `at` on, or of as many as there are; returns how many, and
// moves `at` behind them. `out` has room for count + kOnesSlack.
inline std::size_t next_ones(std::span<const std::byte> bytes, std::size_t& at, std::size_t count, Index* out) {
  const std::size_t whole = bytes.size() / 8;
  std::size_t word = at / 64;
  std::size_t found = 0;
  const auto list_part = [&](unsigned skipped) {
    const std::size_t size = std::min<std::size_t>(8, bytes.size() - 8 * word);
    const std::uint64_t bits = load_tail(bytes.data() + 8 * word, size) >> skipped << skipped;
    for (std::uint64_t rest = bits; rest != 0; rest &= rest - 1)
      out[found++] = static_cast<Index>(64 * word + static_cast<unsigned>(std::countr_zero(rest)));
    ++word;
  };
  if (at % 64 != 0) list_part(static_cast<unsigned>(at % 64));
  if (found < count && word < whole) {
    const auto rest = bytes.subspan(8 * word, 8 * (whole - word));
    const auto listed = kernels().codings.list_ones(rest, static_cast<Index>(64 * word), out + found, count - found);
    found += listed.ones;
    word += listed.words;
  }
  if (found < count && word == whole && bytes.size() % 8 != 0) list_part(0);
  // Ones that were listed in vain all lie in the last word.
  at = found > count ? 64 * (word - 1) + out[count] % 64 : 64 * word;
  return std::min(found, count);
}

}  // namespace oktopk
