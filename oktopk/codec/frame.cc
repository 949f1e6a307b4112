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
#include "oktopk/codec/kernels.h"
#include "oktopk/codec/value_codec.h"

namespace oktopk {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

constexpr std::uint16_t kMagic = 0x4B4F;  // "OK" in memory
constexpr std::uint8_t kVersion = 2;

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

// Entries that decode_frame_add handles at once: they stay in the nearest cache.
constexpr std::size_t kPiece = 2 * kIndexPiece;

void check_indices(const FrameSpec& spec, std::span<const Index> idx) {
  const Range range = spec.range;
  if (idx.empty()) return;
  require(codec_kernels().increasing(idx.data(), idx.size()), "encode_frame: the ", idx.size(),
          " indices are not strictly increasing");
  require(idx.front() >= range.begin && idx.back() < range.end, "encode_frame: indices ",
          idx.front(), "..", idx.back(), " lie outside [", range.begin, ", ", range.end, ")");
}

void check_finite(std::span<const float> val) {
  constexpr std::uint32_t kInfinity = 0x7F800000u;
  std::uint32_t wrong = 0;
  for (const float v : val) {
    wrong |= (std::bit_cast<std::uint32_t>(v) & kInfinity) == kInfinity ? 1u : 0u;
  }
  require(wrong == 0, "encode_frame: a value is NaN or infinite; only finite values travel");
}

// Writes the header of the frame that starts at `start`, behind which the payload stands.
void seal(const FrameSpec& spec, std::size_t count, std::size_t start, Bytes& out) {
  const auto payload = std::span<const std::byte>(out).subspan(start + kFrameHeaderBytes);
  const auto codings =
      static_cast<unsigned>(spec.codec.index) | (static_cast<unsigned>(spec.codec.value) << 4);
  Header header{.magic = kMagic,
                .version = kVersion,
                .codings = static_cast<std::uint8_t>(codings),
                .count = static_cast<std::uint32_t>(count),
                .begin = spec.range.begin,
                .end = spec.range.end,
                .payload_bytes = payload.size(),
                .tag = spec.tag,
                .checksum = 0};
  header.checksum = checksum_of(header, payload);
  std::memcpy(out.data() + start, &header, sizeof header);
}

// Appends header, indices (none of coding `all`) and values. Room for the most that they can take
// is made once, and what was not needed given back: nothing is copied.
void append_frame(const FrameSpec& spec, CooView v, Bytes& out) {
  const IndexCodec& indices = index_codec(spec.codec.index);
  const ValueCodec& values = value_codec(spec.codec.value);
  const std::size_t start = out.size();
  std::size_t end = start + kFrameHeaderBytes;
  if (!v.val.empty()) {
    const std::size_t value_bytes = values.bytes(v.val.size());
    const std::size_t most = indices.bounds(v.val.size(), spec.range.width()).most;
    out.resize(end + most + kIndexSlack + value_bytes);
    end += indices.encode_to(v.idx, spec.range, out.data() + end);
    values.encode(v.val, std::span(out).subspan(end, value_bytes));
    end += value_bytes;
  }
  out.resize(end);
  seal(spec, v.val.size(), start, out);
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
  append_frame(spec, v, out);
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
  append_frame(all, {{}, dense}, out);
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

void decode_frame_add(const Frame& frame, std::span<float> out) {
  require(out.size() == frame.range.width(), "decode_frame_add: ", out.size(),
          " places for a range of ", frame.range.width());
  const Parts parts = split(frame);
  const IndexCodec& indices = index_codec(frame.codec.index);
  const ValueCodec& values = value_codec(frame.codec.value);
  IndexCursor cursor{.payload = parts.index, .range = frame.range, .count = frame.count};
  std::array<Index, kPiece> idx;
  std::array<float, kPiece> val;
  for (std::size_t done = 0; done < frame.count; done += kPiece) {
    const std::size_t count = std::min(kPiece, frame.count - done);
    values.decode(parts.value.subspan(values.bytes(done), values.bytes(count)),
                  std::span(val).first(count));
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

std::size_t max_frame_bytes(Codec codec, std::size_t entries, std::size_t width,
                            std::size_t frames) {
  return frames * kFrameHeaderBytes + max_payload_bytes(codec, entries, width, frames);
}

}  // namespace oktopk
