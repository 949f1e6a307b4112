// SPDX-License-Identifier: Apache-2.0
// The seam between frames and the ways to code sorted indices: one virtual call per frame. An index
// coding knows its own bytes only; frame.cc finds where they start and end. Implementations have no
// state; each lives in its own index_*.cc and is named in the table of codec.cc.
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

class IndexCodec {
 public:
  // Appends the code of `idx`. REQUIRES: idx not empty, strictly increasing, inside range.
  virtual void encode(std::span<const Index> idx, Range range, Bytes& out) const = 0;

  // Writes exactly out.size() strictly increasing indices of `range`, or throws CommError.
  // REQUIRES: out not empty, payload.size() within bounds(out.size(), range.width()).
  virtual void decode(std::span<const std::byte> payload, Range range,
                      std::span<Index> out) const = 0;

  // What a payload of `count` >= 1 indices can take; checked before a decoder allocates anything.
  // The upper bound holds for any indices. REQUIRES: 1 <= count <= width.
  virtual SizeBounds bounds(std::size_t count, std::size_t width) const = 0;

  // As max_payload_bytes and expected_payload_bytes of codec.h, the index bytes alone.
  // REQUIRES: 1 <= frames <= entries <= width.
  virtual std::size_t max_bytes(std::size_t entries, std::size_t width,
                                std::size_t frames) const = 0;
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
