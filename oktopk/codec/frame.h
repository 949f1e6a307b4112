// SPDX-License-Identifier: Apache-2.0
// A frame is one encoded sparse vector: a checksum, the count, and the payload (docs/wire_format.md). Codec, range and
// tag do not travel: the receiver says what it expects, and the checksum covers them, so that a frame of another step,
// range or codec looks like a damaged one. Frames can be concatenated and forwarded unopened.
//
// Foreign bytes are checked here and nowhere else: opening checks lengths and checksum before anything is allocated,
// decoding checks every index and value. Any violation is a CommError; no input reads or writes out of bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "oktopk/base/bytes.h"
#include "oktopk/codec/codec.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

// Sender and receiver of a frame know this before it travels. The tag is any number that they share (step and problem).
struct FrameSpec {
  Codec codec;
  Range range;  // all indices lie inside; stored relative to range.begin
  std::uint32_t tag = 0;
};

// Appends one frame to `out`. With a lossy codec, appends (index, value - decoded value) of every entry that changed to
// `error`, if given. REQUIRES: v canonical; inside spec.range; with IndexCoding::all, v has every index of the range.
// UsageError if a value is not finite: nothing is appended.
void encode_frame(const FrameSpec& spec, CooView v, Bytes& out, SparseVector* error = nullptr);

// Appends one frame of coding `all` that holds every value of `dense` (range.width() of them). Logarithmic value
// codings are meant for selections without small values and are sent as bf16 here. Errors as above.
void encode_dense_frame(const FrameSpec& spec, std::span<const float> dense, Bytes& out, SparseVector* error = nullptr);

// A checked frame inside received bytes (borrowed).
struct Frame {
  Codec codec;  // of the payload: that of the spec, or of a dense frame
  Range range;
  std::size_t count = 0;
  std::size_t head = 0;  // bytes before the payload
  std::span<const std::byte> payload;
  std::size_t bytes() const { return head + payload.size(); }
};

// Opens the frame of encode_frame or encode_dense_frame at the start of `bytes`; more may follow it. Throws CommError
// unless it was encoded with the same spec and is undamaged.
Frame open_frame(std::span<const std::byte> bytes, const FrameSpec& spec);

// The two halves of open_frame. read_frame_head throws CommError unless the count fits the range and the payload lies
// inside `bytes`. The checksum covers the payload, and all that both sides know of the frame.
Frame read_frame_head(std::span<const std::byte> bytes, const FrameSpec& spec);
std::uint32_t frame_checksum_of(const Frame& frame, std::uint32_t tag);
std::uint32_t frame_checksum(std::span<const std::byte, 28> context, std::span<const std::byte> payload);

// Appends the frame's entries to `out`; zeros of an `all` frame are left out.
void decode_frame(const Frame& frame, SparseVector& out);

// The codec of a dense frame: no index bytes, and bf16 in place of logarithmic values.
Codec dense_codec(Codec codec);

// Sizes (codec.cc). The head of a frame of `count` entries from encode_frame:
inline constexpr std::size_t kFrameChecksumBytes = sizeof(std::uint32_t);
std::size_t frame_head_bytes(Codec codec, std::size_t count);
// A whole frame of encode_frame, for uniformly random positions; of encode_dense_frame:
double expected_frame_bytes(Codec codec, double entries, double width);
std::size_t dense_frame_bytes(Codec codec, std::size_t width);
double expected_dense_frame_bytes(Codec codec, double width);
// An upper bound for `frames` frames that hold at most `entries` entries in ranges of together `width` positions: the
// capacity to receive them with.
std::size_t max_frame_bytes(Codec codec, std::size_t entries, std::size_t width, std::size_t frames = 1);

}  // namespace oktopk
