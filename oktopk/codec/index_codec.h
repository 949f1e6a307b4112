// SPDX-License-Identifier: Apache-2.0
// The seam between frames and the ways to code sorted indices: one virtual call per frame, or per
// piece of one. An index coding knows its own bytes only; frame.cc finds where they start and end.
// Implementations have no state; each lives in its own index_*.cc and is named in the table of
// codec.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "oktopk/base/bytes.h"
#include "oktopk/codec/codec.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

// Least and most bytes that a coding can take; equal where the size follows from count and width.
struct SizeBounds {
  std::size_t least = 0;
  std::size_t most = 0;
};

// A frame's indices while they are decoded, some at a time. `done` and `next` are kept by all
// codings, `at` and `left` are their own.
struct IndexCursor {
  std::span<const std::byte> payload;
  Range range;
  std::size_t count = 0;     // in the whole frame
  std::size_t done = 0;      // decoded so far
  Index next = range.begin;  // one past the last of them
  std::size_t at = 0;
  std::size_t left = 0;
};

// Indices come in pieces of a multiple of this many; only the last one may have any size.
inline constexpr std::size_t kIndexPiece = 512;

// What an encoder may write behind the end of its code.
inline constexpr std::size_t kIndexSlack = 16;

class IndexCodec {
 public:
  // Writes the code of `idx` and returns its size. REQUIRES: idx not empty, strictly increasing,
  // inside range; bounds(idx.size(), range.width()).most + kIndexSlack bytes at `out`.
  virtual std::size_t encode_to(std::span<const Index> idx, Range range, std::byte* out) const = 0;

  // Writes the next out.size() indices, strictly increasing and inside the range, or throws
  // CommError. With the last one it checks that nothing is left. REQUIRES: out a piece;
  // payload.size() within bounds(count, range.width()).
  virtual void decode_next(IndexCursor& cursor, std::span<Index> out) const = 0;

  // All at once: encode appends, decode writes out.size() >= 1 indices.
  void encode(std::span<const Index> idx, Range range, Bytes& out) const {
    const std::size_t start = out.size();
    out.resize(start + bounds(idx.size(), range.width()).most + kIndexSlack);
    out.resize(start + encode_to(idx, range, out.data() + start));
  }
  void decode(std::span<const std::byte> payload, Range range, std::span<Index> out) const {
    IndexCursor cursor{.payload = payload, .range = range, .count = out.size()};
    decode_next(cursor, out);
  }

  // What a payload of `count` >= 1 indices can take; checked before a decoder allocates anything.
  // The upper bound holds for any indices. REQUIRES: 1 <= count <= width.
  virtual SizeBounds bounds(std::size_t count, std::size_t width) const = 0;

  // Whether least and most always agree. Otherwise a frame says how many index bytes it has.
  virtual bool has_fixed_size() const { return true; }

  // As max_payload_bytes and expected_payload_bytes of codec.h, the index bytes alone.
  // REQUIRES: 1 <= frames <= entries <= width.
  virtual std::size_t max_bytes(std::size_t entries, std::size_t width, std::size_t frames) const = 0;
  virtual double expected_bytes(double entries, double width) const = 0;

 protected:
  ~IndexCodec() = default;
};

const IndexCodec& index_coo32();
const IndexCodec& index_u16_blocks();
const IndexCodec& index_bit_packed();
const IndexCodec& index_elias_fano();
const IndexCodec& index_bitmap();
const IndexCodec& index_all();

// REQUIRES: a known coding (UsageError otherwise).
const IndexCodec& index_codec(IndexCoding coding);

}  // namespace oktopk
