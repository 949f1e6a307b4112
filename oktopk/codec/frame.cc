// SPDX-License-Identifier: Apache-2.0
// Header, checksum, and the cut of a payload into index and value bytes: the size of the value
// bytes follows from the count, the index bytes are the rest. Every size is checked against the
// bytes that are really there before anything is allocated: a value takes at least half a byte, so
// memory for the entries is at most a small multiple of what was received.
#include "oktopk/codec/frame.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "oktopk/base/error.h"
#include "oktopk/codec/checksum.h"
#include "oktopk/codec/index_codec.h"
#include "oktopk/codec/value_codec.h"

namespace oktopk {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

constexpr std::uint16_t kMagic = 0x4B4F;  // "OK" in memory
constexpr std::uint8_t kVersion = 1;

struct Header {
  std::uint16_t magic;
  std::uint8_t version;
  std::uint8_t codings;  // index coding in the low nibble, value coding in the high one
  std::uint32_t count;
  std::uint32_t begin;
  std::uint32_t end;
  std::uint64_t payload_bytes;
  std::uint32_t tag;
  std::uint32_t checksum;
};
static_assert(sizeof(Header) == kFrameHeaderBytes);
static_assert(std::has_unique_object_representations_v<Header>);

std::uint32_t checksum_of(const Header& header, std::span<const std::byte> payload) {
  return frame_checksum(std::as_bytes(std::span(&header, 1)).first<28>(), payload);
}

void check_indices(const FrameSpec& spec, std::span<const Index> idx) {
  const Range range = spec.range;
  if (idx.empty()) return;
  bool increasing = true;
  for (std::size_t i = 1; i < idx.size(); ++i) increasing &= idx[i - 1] < idx[i];
  require(increasing, "encode_frame: the ", idx.size(), " indices are not strictly increasing");
  require(idx.front() >= range.begin && idx.back() < range.end, "encode_frame: indices ",
          idx.front(), "..", idx.back(), " lie outside [", range.begin, ", ", range.end, ")");
}

void check_finite(std::span<const float> val) {
  constexpr std::uint32_t kInfinity = 0x7F800000u;
  std::uint32_t most = 0;
  for (const float v : val) most = std::max(most, std::bit_cast<std::uint32_t>(v) & 0x7FFFFFFFu);
  require(most < kInfinity, "encode_frame: a value is NaN or infinite; only finite values travel");
}

// Appends the values and seals the frame that starts at `start`, whose index bytes are written.
void finish_frame(const FrameSpec& spec, std::span<const float> val, std::size_t start,
                  Bytes& out) {
  const ValueCodec& values = value_codec(spec.codec.value);
  const std::size_t value_start = out.size();
  if (!val.empty()) {
    out.resize(value_start + values.bytes(val.size()));
    values.encode(val, std::span(out).subspan(value_start));
  }
  const auto payload = std::span<const std::byte>(out).subspan(start + kFrameHeaderBytes);
  const auto codings =
      static_cast<unsigned>(spec.codec.index) | (static_cast<unsigned>(spec.codec.value) << 4);
  Header header{.magic = kMagic,
                .version = kVersion,
                .codings = static_cast<std::uint8_t>(codings),
                .count = static_cast<std::uint32_t>(val.size()),
                .begin = spec.range.begin,
                .end = spec.range.end,
                .payload_bytes = payload.size(),
                .tag = spec.tag,
                .checksum = 0};
  header.checksum = checksum_of(header, payload);
  std::memcpy(out.data() + start, &header, sizeof header);
}

// Appends what the coding took off each value. Decoding the bytes just written into the place of
// the result makes the errors those of the receivers, and needs no scratch memory.
template <class IndexAt>
void append_errors(ValueCoding coding, std::span<const float> val, const Bytes& out,
                   IndexAt index_at, SparseVector& error) {
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
  const std::size_t count = frame.count;
  if (count > width) fail<CommError>("frame: ", count, " entries in a range of ", width);
  if (frame.codec.index == IndexCoding::all && count != width) {
    fail<CommError>("frame: coding 'all' with ", count, " entries for a range of ", width);
  }
  if (count == 0) {
    if (size != 0) fail<CommError>("frame: no entries, but ", size, " payload bytes");
    return {};
  }
  const std::size_t value_bytes = value_codec(frame.codec.value).bytes(count);
  const SizeBounds bounds = index_codec(frame.codec.index).bounds(count, width);
  if (size < value_bytes || size - value_bytes < bounds.least || size - value_bytes > bounds.most) {
    fail<CommError>("frame: ", size, " payload bytes for ", count, " entries of ",
                    to_string(frame.codec), " in a range of ", width, "; expected ", value_bytes,
                    " for the values and ", bounds.least, " to ", bounds.most, " for the indices");
  }
  return {frame.payload.first(size - value_bytes), frame.payload.last(value_bytes)};
}

void check_known(const Header& header, std::size_t index, std::size_t value) {
  if (header.magic != kMagic) fail<CommError>("frame: magic is ", header.magic, ", not ", kMagic);
  if (header.version != kVersion) {
    fail<CommError>("frame: version ", int{header.version}, "; this build reads ", int{kVersion});
  }
  if (index >= index_codings().size() || value >= value_codings().size()) {
    fail<CommError>("frame: unknown coding, index ", index, ", value ", value);
  }
  if (header.begin > header.end) {
    fail<CommError>("frame: range [", header.begin, ", ", header.end, ") is reversed");
  }
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
  require(spec.range.begin <= spec.range.end, "encode_frame: range [", spec.range.begin, ", ",
          spec.range.end, ") is reversed");
  require(v.idx.size() == v.val.size(), "encode_frame: ", v.idx.size(), " indices but ",
          v.val.size(), " values");
  require(spec.codec.index != IndexCoding::all || v.size() == spec.range.width(),
          "encode_frame: coding 'all' needs all ", spec.range.width(), " entries, not ", v.size());
  check_indices(spec, v.idx);
  check_finite(v.val);
  const IndexCodec& indices = index_codec(spec.codec.index);
  value_codec(spec.codec.value);  // throws before anything is appended
  const std::size_t start = out.size();
  out.resize(start + kFrameHeaderBytes);
  if (!v.empty()) indices.encode(v.idx, spec.range, out);
  finish_frame(spec, v.val, start, out);
  if (error != nullptr) {
    append_errors(
        spec.codec.value, v.val, out, [v](std::size_t i) { return v.idx[i]; }, *error);
  }
}

void encode_dense_frame(const FrameSpec& spec, std::span<const float> dense, Bytes& out,
                        SparseVector* error) {
  require(spec.range.begin <= spec.range.end && dense.size() == spec.range.width(),
          "encode_dense_frame: ", dense.size(), " values for [", spec.range.begin, ", ",
          spec.range.end, ")");
  check_finite(dense);
  FrameSpec all = spec;
  all.codec.index = IndexCoding::all;
  if (!spec.codec.lossless()) all.codec.value = ValueCoding::bf16;
  const std::size_t start = out.size();
  out.resize(start + kFrameHeaderBytes);
  finish_frame(all, dense, start, out);
  if (error != nullptr) {
    const Index begin = spec.range.begin;
    const auto index_at = [begin](std::size_t i) { return begin + static_cast<Index>(i); };
    append_errors(all.codec.value, dense, out, index_at, *error);
  }
}

Frame open_frame(std::span<const std::byte> bytes) {
  if (bytes.size() < kFrameHeaderBytes) {
    fail<CommError>("frame: ", bytes.size(), " bytes are less than a header of ",
                    kFrameHeaderBytes);
  }
  Header header;
  std::memcpy(&header, bytes.data(), sizeof header);
  const std::size_t index = header.codings & 15u;
  const std::size_t value = header.codings >> 4;
  check_known(header, index, value);
  const std::span<const std::byte> rest = bytes.subspan(kFrameHeaderBytes);
  if (header.payload_bytes > rest.size()) {
    fail<CommError>("frame: truncated, ", header.payload_bytes, " payload bytes announced, ",
                    rest.size(), " there");
  }
  const Frame frame{.codec = {static_cast<IndexCoding>(index), static_cast<ValueCoding>(value)},
                    .range = {header.begin, header.end},
                    .tag = header.tag,
                    .count = header.count,
                    .payload = rest.first(header.payload_bytes)};
  split(frame);
  if (const std::uint32_t sum = checksum_of(header, frame.payload); sum != header.checksum) {
    fail<CommError>("frame: checksum ", header.checksum, " announced, ", sum, " computed over ",
                    frame.payload.size(), " payload bytes: damaged on the way");
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

void decode_frame_add(const Frame& frame, std::span<float> out, SparseVector& scratch) {
  require(out.size() == frame.range.width(), "decode_frame_add: ", out.size(),
          " places for a range of ", frame.range.width());
  if (frame.count == 0) return;
  scratch.clear();
  append_entries(frame, scratch);
  float* const place = out.data();
  const Index begin = frame.range.begin;
  for (std::size_t i = 0; i < scratch.size(); ++i) place[scratch.idx[i] - begin] += scratch.val[i];
}

std::size_t max_frame_bytes(Codec codec, std::size_t entries, std::size_t width,
                            std::size_t frames) {
  return frames * kFrameHeaderBytes + max_payload_bytes(codec, entries, width, frames);
}

}  // namespace oktopk
