// SPDX-License-Identifier: Apache-2.0
// Checks, and the cut of a payload into index and value bytes: the size of the value bytes follows
// from the count, the index bytes are the rest. Every size is checked against the bytes that are
// really there before anything is allocated: a value takes at least half a byte, so memory for the
// entries is at most a small multiple of what was received. The bytes before the payload are in
// frame_head.cc.
#include "oktopk/codec/frame.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "oktopk/base/error.h"
#include "oktopk/base/varint.h"
#include "oktopk/codec/frame_head.h"
#include "oktopk/codec/index_codec.h"
#include "oktopk/codec/kernels.h"
#include "oktopk/codec/value_codec.h"

namespace oktopk {
namespace {

// Entries that decode_frame_add handles at once: they stay in the nearest cache.
constexpr std::size_t kPiece = 2 * kIndexPiece;

void check_indices(const FrameSpec& spec, std::span<const Index> idx) {
  const Range range = spec.range;
  if (idx.empty()) return;
  require(codec_kernels().increasing(idx.data(), idx.size()), "encode_frame: the ", idx.size(),
          " indices are not strictly increasing");
  require(idx.front() >= range.begin && idx.back() < range.end, "encode_frame: indices ", idx.front(), "..", idx.back(),
          " lie outside [", range.begin, ", ", range.end, ")");
}

void check_finite(std::span<const float> val) {
  constexpr std::uint32_t kInfinity = 0x7F800000u;
  std::uint32_t wrong = 0;
  for (const float v : val) {
    wrong |= (std::bit_cast<std::uint32_t>(v) & kInfinity) == kInfinity ? 1u : 0u;
  }
  require(wrong == 0, "encode_frame: a value is NaN or infinite; only finite values travel");
}

// Appends head, indices (none of coding `all`) and values. Room for the most that they can take is
// made once, and what was not needed given back: nothing is copied. `first` is the number that
// tells sparse frames and their count from dense ones.
void append_frame(const FrameSpec& spec, CooView v, std::uint64_t first, Bytes& out) {
  const IndexCodec& indices = index_codec(spec.codec.index);
  const ValueCodec& values = value_codec(spec.codec.value);
  const std::size_t count = v.val.size();
  const std::size_t start = out.size();
  const std::size_t field = frame_size_field(spec.codec.index, count);
  const std::size_t head = kFrameChecksumBytes + varint_bytes(first) + field;
  std::size_t end = start + head;
  out.resize(end);
  put_varint(first, out.data() + start + kFrameChecksumBytes);
  if (count > 0) {
    const std::size_t value_bytes = values.bytes(count);
    const std::size_t most = indices.bounds(count, spec.range.width()).most;
    out.resize(end + most + kIndexSlack + value_bytes);
    const std::uint64_t index_bytes = indices.encode_to(v.idx, spec.range, out.data() + end);
    std::memcpy(out.data() + end - field, &index_bytes, field);
    end += index_bytes;
    values.encode(v.val, std::span(out).subspan(end, value_bytes));
    end += value_bytes;
  }
  out.resize(end);
  const Frame frame{spec.codec, spec.range, count, head, std::span<const std::byte>(out).subspan(start + head)};
  const std::uint32_t sum = frame_checksum_of(frame, spec.tag);
  std::memcpy(out.data() + start, &sum, sizeof sum);
}

// Appends what the coding took off each value. Decoding the bytes just written into the place of
// the result makes the errors those of the receivers, and needs no scratch memory.
template <class IndexAt>
void append_errors(ValueCoding coding, std::span<const float> val, const Bytes& out, IndexAt index_at,
                   SparseVector& error) {
  if (val.empty() || coding == ValueCoding::fp32) return;
  const ValueCodec& values = value_codec(coding);
  std::size_t at = error.size();
  error.resize(at + val.size());
  const std::span<float> decoded = std::span(error.val).subspan(at);
  values.decode(std::span<const std::byte>(out).last(values.bytes(val.size())), decoded);
  for (std::size_t i = 0; i < val.size(); ++i) {
    const float difference = val[i] - decoded[i];
    error.idx[at] = index_at(i);
    error.val[at] = difference;
    at += difference != 0;
  }
  error.resize(at);
}

struct Parts {
  std::span<const std::byte> index;
  std::span<const std::byte> value;
};

// REQUIRES: known codings. Throws CommError unless the payload can hold exactly the entries.
Parts split(const Frame& frame) {
  const std::size_t width = frame.range.width();
  const std::size_t size = frame.payload.size();
  check_frame_count(frame.codec, frame.count, width);
  if (frame.count == 0) return {};
  const std::size_t value_bytes = value_codec(frame.codec.value).bytes(frame.count);
  const SizeBounds bounds = index_codec(frame.codec.index).bounds(frame.count, width);
  if (size < value_bytes || size - value_bytes < bounds.least || size - value_bytes > bounds.most) {
    fail<CommError>("frame: ", size, " payload bytes for ", frame.count, " entries of ", to_string(frame.codec),
                    " in a range of ", width, "; expected ", value_bytes, " for the values and ", bounds.least, " to ",
                    bounds.most, " for the indices");
  }
  return {frame.payload.first(size - value_bytes), frame.payload.last(value_bytes)};
}

// Appends the entries of a frame that is not empty.
void append_entries(const Frame& frame, SparseVector& out) {
  const Parts parts = split(frame);
  const std::size_t start = out.size();
  out.resize(start + frame.count);
  const std::span<Index> idx = std::span(out.idx).subspan(start);
  index_codec(frame.codec.index).decode(parts.index, frame.range, idx);
  value_codec(frame.codec.value).decode(parts.value, std::span(out.val).subspan(start));
}

void drop_zeros(SparseVector& out, std::size_t start) {
  std::size_t at = start;
  for (std::size_t i = start; i < out.size(); ++i) {
    out.idx[at] = out.idx[i];
    out.val[at] = out.val[i];
    at += out.val[i] != 0;
  }
  out.resize(at);
}

}  // namespace

void encode_frame(const FrameSpec& spec, CooView v, Bytes& out, SparseVector* error) {
  require(spec.range.begin <= spec.range.end, "encode_frame: range [", spec.range.begin, ", ", spec.range.end,
          ") is reversed");
  require(v.idx.size() == v.val.size(), "encode_frame: ", v.idx.size(), " indices but ", v.val.size(), " values");
  require(spec.codec.index != IndexCoding::all || v.size() == spec.range.width(),
          "encode_frame: coding 'all' needs all ", spec.range.width(), " entries, not ", v.size());
  check_indices(spec, v.idx);
  check_finite(v.val);
  append_frame(spec, v, 2 * std::uint64_t{v.size()}, out);
  if (error != nullptr) {
    append_errors(
        spec.codec.value, v.val, out, [v](std::size_t i) { return v.idx[i]; }, *error);
  }
}

void encode_dense_frame(const FrameSpec& spec, std::span<const float> dense, Bytes& out, SparseVector* error) {
  require(spec.range.begin <= spec.range.end && dense.size() == spec.range.width(),
          "encode_dense_frame: ", dense.size(), " values for [", spec.range.begin, ", ", spec.range.end, ")");
  check_finite(dense);
  FrameSpec all = spec;
  all.codec = dense_codec(spec.codec);
  append_frame(all, {{}, dense}, kDenseHead, out);
  if (error != nullptr) {
    const Index begin = spec.range.begin;
    const auto index_at = [begin](std::size_t i) { return begin + static_cast<Index>(i); };
    append_errors(all.codec.value, dense, out, index_at, *error);
  }
}

Frame open_frame(std::span<const std::byte> bytes, const FrameSpec& spec) {
  require(spec.range.begin <= spec.range.end, "open_frame: range [", spec.range.begin, ", ", spec.range.end,
          ") is reversed");
  const Frame frame = read_frame_head(bytes, spec);
  split(frame);
  std::uint32_t announced = 0;
  std::memcpy(&announced, bytes.data(), kFrameChecksumBytes);
  if (const std::uint32_t sum = frame_checksum_of(frame, spec.tag); sum != announced) {
    fail<CommError>("a frame of another step, problem or range, or damaged (checksum ", announced, " announced, ", sum,
                    " computed over ", frame.count, " entries; expected tag ", spec.tag, ", range [", spec.range.begin,
                    ", ", spec.range.end, "), codec ", to_string(spec.codec), ")");
  }
  return frame;
}

void decode_frame(const Frame& frame, SparseVector& out) {
  if (frame.count == 0) return;
  const std::size_t start = out.size();
  try {
    append_entries(frame, out);
  } catch (...) {
    out.resize(std::min(start, out.size()));
    throw;
  }
  if (frame.codec.index == IndexCoding::all) drop_zeros(out, start);
}

void decode_frame_add(const Frame& frame, std::span<float> out) {
  require(out.size() == frame.range.width(), "decode_frame_add: ", out.size(), " places for a range of ",
          frame.range.width());
  const Parts parts = split(frame);
  const IndexCodec& indices = index_codec(frame.codec.index);
  const ValueCodec& values = value_codec(frame.codec.value);
  IndexCursor cursor{.payload = parts.index, .range = frame.range, .count = frame.count};
  std::array<Index, kPiece> idx;
  std::array<float, kPiece> val;
  for (std::size_t done = 0; done < frame.count; done += kPiece) {
    const std::size_t count = std::min(kPiece, frame.count - done);
    values.decode(parts.value.subspan(values.bytes(done), values.bytes(count)), std::span(val).first(count));
    if (frame.codec.index == IndexCoding::all) {
      for (std::size_t i = 0; i < count; ++i) out[done + i] += val[i];
      continue;
    }
    indices.decode_next(cursor, std::span(idx).first(count));
    float* const place = out.data();
    const Index begin = frame.range.begin;
    for (std::size_t i = 0; i < count; ++i) place[idx[i] - begin] += val[i];
  }
}

}  // namespace oktopk
