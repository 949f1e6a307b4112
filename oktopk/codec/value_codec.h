// SPDX-License-Identifier: Apache-2.0
// The seam between frames and the ways to code values: one virtual call per frame. The size of the
// code follows from the count alone, which lets frame.cc cut a payload into index and value bytes.
// Implementations have no state; each lives in its own value_*.cc and is named in codec.cc.
#pragma once

#include <cstddef>
#include <span>

#include "oktopk/codec/codec.h"

namespace oktopk {

class ValueCodec {
 public:
  // The size of `count` coded values; increasing, and at least count / 2. The first 256 * i of any
  // number of values are the first bytes(256 * i) bytes, and can be decoded without the rest.
  virtual std::size_t bytes(std::size_t count) const = 0;

  // bytes(a) + bytes(b) <= bytes(a + b) + cut_bytes() for any a and b.
  virtual std::size_t cut_bytes() const = 0;

  // REQUIRES: val finite, out.size() == bytes(val.size()).
  // ENSURES: each value decodes to zero or to within a factor of two, so that value - decoded is
  // exact in float (Sterbenz).
  virtual void encode(std::span<const float> val, std::span<std::byte> out) const = 0;

  // Writes out.size() finite values, or throws CommError. REQUIRES: payload.size() ==
  // bytes(out.size()).
  virtual void decode(std::span<const std::byte> payload, std::span<float> out) const = 0;

 protected:
  ~ValueCodec() = default;
};

const ValueCodec& value_fp32();
const ValueCodec& value_bf16();
const ValueCodec& value_log8();
const ValueCodec& value_log4();

// REQUIRES: a known coding (UsageError otherwise).
const ValueCodec& value_codec(ValueCoding coding);

}  // namespace oktopk
