// SPDX-License-Identifier: Apache-2.0
// A frame is one encoded sparse vector: a 32-byte header that says everything the decoder needs,
// and the payload (docs/wire_format.md). Frames can be concatenated and forwarded unopened. Opening
// checks magic, codings, lengths, tag and checksum before anything is allocated; decoding checks
// every index. Any violation is a CommError; no input of any kind makes it read or write out of
// bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "oktopk/base/bytes.h"
#include "oktopk/codec/codec.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

inline constexpr std::size_t kFrameHeaderBytes = 32;

// What an encoder says about a frame besides its entries. The tag is any number sender and receiver
// share (step and problem): a receiver that expects another one reports the mismatch.
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
void encode_dense_frame(const FrameSpec& spec, std::span<const float> dense, Bytes& out,
                        SparseVector* error = nullptr);

// A checked frame inside received bytes (borrowed).
struct Frame {
  Codec codec;
  Range range;
  std::uint32_t tag = 0;
  std::size_t count = 0;
  std::span<const std::byte> payload;
  std::size_t bytes() const { return kFrameHeaderBytes + payload.size(); }
};

// Opens the frame at the start of `bytes` (which may go on after it). Throws CommError.
Frame open_frame(std::span<const std::byte> bytes);

// Appends the frame's entries to `out`; of an `all` frame, those that are not zero.
void decode_frame(const Frame& frame, SparseVector& out);

// out[i - range.begin] += value for every entry. REQUIRES: out.size() == frame.range.width(). Adds
// as it decodes, without memory for the entries: after a CommError, which only a faulty encoder can
// cause in an opened frame, some of them have been added.
void decode_frame_add(const Frame& frame, std::span<float> out);

// An upper bound for the bytes of `frames` frames that hold at most `entries` entries in ranges
// of together `width` positions: the capacity to receive them with.
std::size_t max_frame_bytes(Codec codec, std::size_t entries, std::size_t width,
                            std::size_t frames = 1);

}  // namespace oktopk
