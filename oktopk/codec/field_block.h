// SPDX-License-Identifier: Apache-2.0
// Packed fields of one width in blocks of up to 512: a full block in 16 lanes, for vector code; a
// last, shorter one field after field, so that it takes no more bytes than it needs.
#pragma once

#include <span>

#include "oktopk/codec/bits.h"
#include "oktopk/codec/kernels.h"

namespace oktopk {

// Writes bytes_for_bits(fields.size() * width) bytes.
inline void pack_block(const CodecKernels& kernels, std::span<const std::uint32_t> fields, unsigned width,
                       std::byte* out) {
  if (fields.size() == kFieldBlock) {
    kernels.pack(fields.data(), width, out);
  } else {
    pack_bits(fields.size(), width, out, [&](std::size_t i) { return fields[i]; });
  }
}

// REQUIRES: from.size() == bytes_for_bits(out.size() * width).
inline void unpack_block(const CodecKernels& kernels, std::span<const std::byte> from, unsigned width,
                         std::span<std::uint32_t> out) {
  if (out.size() == kFieldBlock) {
    kernels.unpack(from.data(), width, out.data());
  } else {
    const BitFields fields(from, width);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::uint32_t>(fields[i]);
  }
}

}  // namespace oktopk
