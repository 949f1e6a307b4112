// SPDX-License-Identifier: Apache-2.0
// The bytes of a frame before its payload, for frame.cc: a checksum, a number that is twice the
// count or says that the frame is dense, and for some index codings the size of the index bytes
// (docs/wire_format.md). Five bytes for up to 63 entries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "oktopk/codec/frame.h"

namespace oktopk {

inline constexpr std::size_t kFrameChecksumBytes = sizeof(std::uint32_t);
inline constexpr std::uint64_t kDenseHead = 1;  // where a sparse frame has twice its count

// Bytes of the field that says how many index bytes there are: none where that follows from count
// and width. No coding takes more than 5 bytes per index.
std::size_t frame_size_field(IndexCoding coding, std::size_t count);

// Throws CommError unless a range of `width` can hold the entries.
void check_frame_count(Codec codec, std::size_t count, std::size_t width);

// Covers the payload, and all that both sides know of the frame.
std::uint32_t frame_checksum_of(const Frame& frame, std::uint32_t tag);

// The frame at the start of `bytes`: codec, count, head and payload. The count fits the range and
// the payload lies inside `bytes`, or it throws CommError; nothing else is checked.
Frame read_frame_head(std::span<const std::byte> bytes, const FrameSpec& spec);

}  // namespace oktopk
