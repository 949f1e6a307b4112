// SPDX-License-Identifier: Apache-2.0
// The interfaces of the codings, which frame.cc calls once per frame. A coding sees its own bytes only: frame.cc finds
// where they start and end. Codings have no state. Each is a local class in indices.cc or values.cc, with a
// factory below and a row in the table of codec.cc.
#pragma once

#include <cstddef>
#include <span>

#include "oktopk/base/bytes.h"
#include "oktopk/codec/codec.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

// The least and the most bytes that a coding can take; equal if the size follows from count and width.
struct SizeBounds {
  std::size_t least = 0;
  std::size_t most = 0;
};

// An encoder may write this many bytes behind the end of its code.
inline constexpr std::size_t kIndexSlack = 16;

class IndexCodec {
 public:
  // Writes the code of `idx` and returns its size. REQUIRES: idx not empty, strictly increasing, inside range;
  // bounds(idx.size(), range.width()).most + kIndexSlack bytes at `out`.
  virtual std::size_t encode_to(std::span<const Index> idx, Range range, std::byte* out) const = 0;

  // Writes out.size() >= 1 indices, strictly increasing and inside the range, or throws CommError; also if any bytes
  // are left. REQUIRES: payload.size() within bounds(out.size(), range.width()).
  virtual void decode(std::span<const std::byte> payload, Range range, std::span<Index> out) const = 0;

  // encode_to, appended.
  void encode(std::span<const Index> idx, Range range, Bytes& out) const {
    const std::size_t start = out.size();
    out.resize(start + bounds(idx.size(), range.width()).most + kIndexSlack);
    out.resize(start + encode_to(idx, range, out.data() + start));
  }

  // The size of a payload of `count` indices; checked before a decoder allocates anything. The upper bound holds for
  // any indices. REQUIRES: 1 <= count <= width.
  virtual SizeBounds bounds(std::size_t count, std::size_t width) const {
    const std::size_t exact = max_bytes(count, width, 1);
    return {exact, exact};
  }

  // Whether least and most always agree. Otherwise the frame's head says how many index bytes it has.
  virtual bool has_fixed_size() const { return true; }

  // As max_payload_bytes and expected_payload_bytes of codec.h, the index bytes alone.
  // REQUIRES: 1 <= frames <= entries <= width.
  virtual std::size_t max_bytes(std::size_t entries, std::size_t width, std::size_t frames) const = 0;
  virtual double expected_bytes(double entries, double width) const = 0;

 protected:
  ~IndexCodec() = default;
};

class ValueCodec {
 public:
  // The size of `count` coded values; increasing, and at least count / 2.
  virtual std::size_t bytes(std::size_t count) const = 0;

  // bytes(a) + bytes(b) <= bytes(a + b) + cut_bytes() for any a and b.
  virtual std::size_t cut_bytes() const { return 0; }

  // REQUIRES: val finite, out.size() == bytes(val.size()). ENSURES: each value decodes to zero or to within a factor of
  // two, so that value - decoded is exact in float (Sterbenz).
  virtual void encode(std::span<const float> val, std::span<std::byte> out) const = 0;

  // Writes out.size() finite values, or throws CommError. REQUIRES: payload.size() == bytes(out.size()).
  virtual void decode(std::span<const std::byte> payload, std::span<float> out) const = 0;

 protected:
  ~ValueCodec() = default;
};

// UsageError unless the coding exists.
const IndexCodec& index_codec(IndexCoding coding);
const ValueCodec& value_codec(ValueCoding coding);

// The factories.
const IndexCodec& index_coo32();
const IndexCodec& index_u16_blocks();
const IndexCodec& index_bit_packed();
const IndexCodec& index_elias_fano();
const IndexCodec& index_bitmap();
const IndexCodec& index_all();
const ValueCodec& value_fp32();
const ValueCodec& value_bf16();
const ValueCodec& value_log8();
const ValueCodec& value_log4();

}  // namespace oktopk
