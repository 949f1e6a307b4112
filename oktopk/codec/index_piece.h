// SPDX-License-Identifier: Apache-2.0
// What decoders of indices share: pieces that stay in the nearest cache while they are checked, and
// the check.
#pragma once

#include <algorithm>

#include "oktopk/base/error.h"
#include "oktopk/codec/index_codec.h"
#include "oktopk/codec/kernels.h"

namespace oktopk {

// Calls decode(piece) for parts of `out` of kIndexPiece indices; the last one may be shorter.
template <class Decode>
void for_each_piece(std::span<Index> out, Decode decode) {
  for (; out.size() > kIndexPiece; out = out.subspan(kIndexPiece)) decode(out.first(kIndexPiece));
  if (!out.empty()) decode(out);
}

// Accepts the indices that a decoder has written, whatever they are, or throws CommError. Indices
// that wrapped around are found too: they lie below `next`, or break the order.
inline void accept(IndexCursor& cursor, std::span<const Index> piece, const char* coding) {
  const bool increasing = codec_kernels().increasing(piece.data(), piece.size());
  if (!increasing || piece.front() < cursor.next) {
    fail<CommError>(coding, ": ", cursor.count, " indices are not increasing");
  }
  if (piece.back() >= cursor.range.end) {
    fail<CommError>(coding, ": index ", piece.back(), " is not in [", cursor.range.begin, ", ", cursor.range.end, ")");
  }
  cursor.next = piece.back() + 1;
  cursor.done += piece.size();
}

}  // namespace oktopk
