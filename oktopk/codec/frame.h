// SPDX-License-Identifier: Apache-2.0
// A frame is one encoded sparse vector: a checksum, the count, and the payload
// (docs/wire_format.md). Codec, range and tag do not travel: the receiver says what it expects, and
// the checksum covers them, so that a frame of another step, range or codec looks like a damaged
// one. Frames can be concatenated and forwarded unopened. Opening checks lengths and checksum
// before anything is allocated; decoding checks every index. Any violation is a CommError; no input
// of any kind makes it read or write out of bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "oktopk/base/bytes.h"
#include "oktopk/codec/codec.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

// Sender and receiver of a frame know this before it travels. The tag is any number that they share
// (step and problem).
struct FrameSpec {
  Codec codec;
  Range range;  // all indices lie inside; stored relative to range.begin
  std::uint32_t tag = 0;
};

// Appends one frame to `out`. With a lossy codec, appends (index, value - decoded value) of every
// entry that changed to `error`, if given. REQUIRES: v canonical, inside spec.range, values finite;
// with IndexCoding::all, v has every index of the range. Checked: UsageError, nothing appended.
void encode_frame(const FrameSpec& spec, CooView v, Bytes& out, SparseVector* error = nullptr);

// Appends one frame of coding `all` that holds every value of `dense` (range.width() of them).
// Logarithmic value codings are meant for selections without small values and are sent as bf16
// here. Errors as above.
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

// Opens the frame of encode_frame or encode_dense_frame at the start of `bytes` (which may go on
// after it). Throws CommError unless it was encoded with the same spec and is undamaged.
Frame open_frame(std::span<const std::byte> bytes, const FrameSpec& spec);

// Appends the frame's entries to `out`; of an `all` frame, those that are not zero.
void decode_frame(const Frame& frame, SparseVector& out);

// out[i - range.begin] += value for every entry. REQUIRES: out.size() == frame.range.width(). Adds
// as it decodes, without memory for the entries: after a CommError, which only a faulty encoder can
// cause in an opened frame, some of them have been added.
void decode_frame_add(const Frame& frame, std::span<float> out);

// The codec of a dense frame: no index bytes, and bf16 in place of logarithmic values.
Codec dense_codec(Codec codec);

// Bytes before the payload of a frame of `count` entries from encode_frame.
std::size_t frame_head_bytes(Codec codec, std::size_t count);

// The whole of a frame: of encode_frame, for uniformly random positions; of encode_dense_frame.
double expected_frame_bytes(Codec codec, double entries, double width);
std::size_t dense_frame_bytes(Codec codec, std::size_t width);
double expected_dense_frame_bytes(Codec codec, double width);

// An upper bound for the bytes of `frames` frames that hold at most `entries` entries in ranges
// of together `width` positions: the capacity to receive them with.
std::size_t max_frame_bytes(Codec codec, std::size_t entries, std::size_t width, std::size_t frames = 1);

}  // namespace oktopk
