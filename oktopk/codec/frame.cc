// SPDX-License-Identifier: Apache-2.0
// The head of a frame, its checks, and the cut of a payload into index and value bytes: the size of the value bytes
// follows from the count, the index bytes are the rest. Every size is checked against the bytes that are really there
// before anything is allocated: a value takes at least half a byte, so memory for the entries is at most a small
// multiple of what was received.
#include "oktopk/codec/frame.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <span>
#include <type_traits>

#include "oktopk/base/error.h"
#include "oktopk/base/varint.h"
#include "oktopk/base/version.h"
#include "oktopk/codec/coding.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

constexpr std::uint16_t kMagic = 0x4B4F;  // "OK" in memory
constexpr std::uint8_t kVersion = kWireVersion;

// The checksum covers the payload and this context, which does not travel: both sides fill it in.
struct Context {
  std::uint16_t magic = kMagic;
  std::uint8_t version = kVersion;
  std::uint8_t codings = 0;  // index coding in the low nibble, value coding in the high one
  std::uint32_t count = 0;
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  std::uint32_t payload_low = 0;  // bytes of the payload, in two halves
  std::uint32_t payload_high = 0;
  std::uint32_t tag = 0;
};
static_assert(sizeof(Context) == 28);
static_assert(std::has_unique_object_representations_v<Context>);

[[noreturn]] void fail_truncated(std::size_t there) {
  fail<CommError>("frame: truncated, it ends after ", there, " bytes");
}

// Throws CommError unless a range of `width` can hold the entries.
void check_count(Codec codec, std::size_t count, std::size_t width) {
  if (count > width) fail<CommError>("frame: ", count, " entries in a range of ", width);
  if (codec.index == IndexCoding::all && count != width)
    fail<CommError>("frame: coding 'all' with ", count, " entries for a range of ", width);
}

constexpr std::uint64_t kDenseHead = 1;  // where a sparse frame has twice its count

// Bytes of the head's field for the size of the index bytes.
std::size_t size_field(Codec codec, std::size_t count) {
  return frame_head_bytes(codec, count) - kFrameChecksumBytes - varint_bytes(2 * std::uint64_t{count});
}

// Appends the rounding error of each value; `idx` is empty for all indices from `begin` on. Decoding the bytes just
// written into the place of the result makes the errors those of the receivers, and needs no scratch memory.
void append_errors(ValueCoding coding, CooView v, Index begin, const Bytes& out, SparseVector& error) {
  if (v.val.empty() || coding == ValueCoding::fp32) return;
  const ValueCodec& values = value_codec(coding);
  std::size_t at = error.size();
  error.resize(at + v.val.size());
  const std::span<float> decoded = std::span(error.val).subspan(at);
  values.decode(std::span<const std::byte>(out).last(values.bytes(v.val.size())), decoded);
  for (std::size_t i = 0; i < v.val.size(); ++i) {
    const float difference = v.val[i] - decoded[i];
    error.idx[at] = v.idx.empty() ? begin + static_cast<Index>(i) : v.idx[i];
    error.val[at] = difference;
    at += difference != 0;
  }
  error.resize(at);
}

// Appends head, indices (none of coding `all`) and values. Makes room once for the most that they can take, and gives
// back what was not needed: nothing is copied. `first` is the head's number: twice the count, or kDenseHead.
void append_frame(const FrameSpec& spec, CooView v, std::uint64_t first, Bytes& out, SparseVector* error) {
  // Allreduce::run has checked this rank's values; sums of finite values can overflow.
  require(first_nonfinite(v.val) == v.val.size(),
          "encode_frame: a value is NaN or infinite; only finite values travel");
  const IndexCodec& indices = index_codec(spec.codec.index);
  const ValueCodec& values = value_codec(spec.codec.value);
  const std::size_t count = v.val.size();
  const std::size_t start = out.size();
  const std::size_t field = size_field(spec.codec, count);
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
  if (error != nullptr) append_errors(spec.codec.value, v, spec.range.begin, out, *error);
}

// The size of the index bytes; the values follow them. Throws CommError unless the payload can hold exactly the
// entries. REQUIRES: known codings, frame.count > 0.
std::size_t index_bytes_of(const Frame& frame) {
  const std::size_t width = frame.range.width();
  const std::size_t size = frame.payload.size();
  check_count(frame.codec, frame.count, width);
  const std::size_t value_bytes = value_codec(frame.codec.value).bytes(frame.count);
  const SizeBounds bounds = index_codec(frame.codec.index).bounds(frame.count, width);
  if (size < value_bytes || size - value_bytes < bounds.least || size - value_bytes > bounds.most) {
    fail<CommError>("frame: ", size, " payload bytes for ", frame.count, " entries of ", to_string(frame.codec),
                    " in a range of ", width, "; expected ", value_bytes, " for the values and ", bounds.least, " to ",
                    bounds.most, " for the indices");
  }
  return size - value_bytes;
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

std::uint32_t frame_checksum_of(const Frame& frame, std::uint32_t tag) {
  const auto codings = static_cast<unsigned>(frame.codec.index) | (static_cast<unsigned>(frame.codec.value) << 4);
  const std::uint64_t size = frame.payload.size();
  const Context context{.codings = static_cast<std::uint8_t>(codings),
                        .count = static_cast<std::uint32_t>(frame.count),
                        .begin = frame.range.begin,
                        .end = frame.range.end,
                        .payload_low = static_cast<std::uint32_t>(size),
                        .payload_high = static_cast<std::uint32_t>(size >> 32),
                        .tag = tag};
  return frame_checksum(std::as_bytes(std::span<const Context, 1>(&context, 1)), frame.payload);
}

Frame read_frame_head(std::span<const std::byte> bytes, const FrameSpec& spec) {
  Frame frame{.codec = spec.codec, .range = spec.range};
  std::uint64_t first = 0;
  auto rest = bytes.subspan(std::min(bytes.size(), kFrameChecksumBytes));
  if (!take_varint(rest, first)) fail_truncated(bytes.size());
  const bool dense = first == kDenseHead;
  if (dense) frame.codec = dense_codec(spec.codec);
  if (!dense && first % 2 != 0) fail<CommError>("frame: starts with the unknown number ", first);
  frame.count = dense ? frame.range.width() : static_cast<std::size_t>(first / 2);
  check_count(frame.codec, frame.count, frame.range.width());
  std::uint64_t size = 0;
  if (frame.count > 0) {
    const IndexCodec& indices = index_codec(frame.codec.index);
    const std::size_t field = size_field(frame.codec, frame.count);
    if (field > rest.size()) fail_truncated(bytes.size());
    std::memcpy(&size, rest.data(), field);
    rest = rest.subspan(field);
    if (field == 0) size = indices.bounds(frame.count, frame.range.width()).least;
    size += value_codec(frame.codec.value).bytes(frame.count);
  }
  if (size > rest.size())
    fail<CommError>("frame: truncated, ", size, " payload bytes announced, ", rest.size(), " there");
  frame.head = bytes.size() - rest.size();
  frame.payload = rest.first(size);
  return frame;
}

void encode_frame(const FrameSpec& spec, CooView v, Bytes& out, SparseVector* error) {
  const Range range = spec.range;
  OKTOPK_DCHECK(is_canonical(v));
  require(range.begin <= range.end && v.size() <= range.width() &&
              (v.empty() || (v.idx.front() >= range.begin && v.idx.back() < range.end)),
          "encode_frame: the ", v.size(), " indices do not lie inside [", range.begin, ", ", range.end, ")");
  require(spec.codec.index != IndexCoding::all || v.size() == range.width(), "encode_frame: coding 'all' needs all ",
          range.width(), " entries, not ", v.size());
  append_frame(spec, v, 2 * std::uint64_t{v.size()}, out, error);
}

void encode_dense_frame(const FrameSpec& spec, std::span<const float> dense, Bytes& out, SparseVector* error) {
  require(spec.range.begin <= spec.range.end && dense.size() == spec.range.width(),
          "encode_dense_frame: ", dense.size(), " values for [", spec.range.begin, ", ", spec.range.end, ")");
  append_frame({dense_codec(spec.codec), spec.range, spec.tag}, {{}, dense}, kDenseHead, out, error);
}

Frame open_frame(std::span<const std::byte> bytes, const FrameSpec& spec) {
  require(spec.range.begin <= spec.range.end, "open_frame: range [", spec.range.begin, ", ", spec.range.end,
          ") is reversed");
  const Frame frame = read_frame_head(bytes, spec);
  if (frame.count > 0) index_bytes_of(frame);
  std::uint32_t announced = 0;
  std::memcpy(&announced, bytes.data(), kFrameChecksumBytes);
  if (const std::uint32_t sum = frame_checksum_of(frame, spec.tag); sum != announced) {
    fail<CommError>("a frame of another step or with other options, or a damaged one (checksum ", announced,
                    " announced, ", sum, " computed over ", frame.count, " entries; expected tag ", spec.tag,
                    ", range [", spec.range.begin, ", ", spec.range.end, "), codec ", to_string(spec.codec), ")");
  }
  return frame;
}

void decode_frame(const Frame& frame, SparseVector& out) {
  if (frame.count == 0) return;
  const std::size_t index_bytes = index_bytes_of(frame);
  const std::size_t start = out.size();
  try {
    out.resize(start + frame.count);
    const auto idx = std::span(out.idx).subspan(start);
    index_codec(frame.codec.index).decode(frame.payload.first(index_bytes), frame.range, idx);
    value_codec(frame.codec.value).decode(frame.payload.subspan(index_bytes), std::span(out.val).subspan(start));
  } catch (...) {
    out.resize(std::min(start, out.size()));
    throw;
  }
  if (frame.codec.index == IndexCoding::all) drop_zeros(out, start);
}

}  // namespace oktopk
