// SPDX-License-Identifier: Apache-2.0
// Checksum, count and, where it does not follow from count and width, the size of the index bytes.
#include "oktopk/codec/frame_head.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "oktopk/base/error.h"
#include "oktopk/base/varint.h"
#include "oktopk/codec/bits.h"
#include "oktopk/codec/checksum.h"
#include "oktopk/codec/index_codec.h"
#include "oktopk/codec/value_codec.h"

namespace oktopk {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

constexpr std::uint16_t kMagic = 0x4B4F;  // "OK" in memory
constexpr std::uint8_t kVersion = 3;

// The checksum covers this besides the payload. It does not travel: both sides fill it in.
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

std::size_t frame_size_field(IndexCoding coding, std::size_t count) {
  if (count == 0 || index_codec(coding).has_fixed_size()) return 0;
  return bytes_for_bits(static_cast<std::size_t>(std::bit_width(5 * count)));
}

void check_frame_count(Codec codec, std::size_t count, std::size_t width) {
  if (count > width) fail<CommError>("frame: ", count, " entries in a range of ", width);
  if (codec.index == IndexCoding::all && count != width) {
    fail<CommError>("frame: coding 'all' with ", count, " entries for a range of ", width);
  }
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
  check_frame_count(frame.codec, frame.count, frame.range.width());
  std::uint64_t size = 0;
  if (frame.count > 0) {
    const IndexCodec& indices = index_codec(frame.codec.index);
    const std::size_t field = frame_size_field(frame.codec.index, frame.count);
    if (field > rest.size()) fail_truncated(bytes.size());
    std::memcpy(&size, rest.data(), field);
    rest = rest.subspan(field);
    if (field == 0) size = indices.bounds(frame.count, frame.range.width()).least;
    size += value_codec(frame.codec.value).bytes(frame.count);
  }
  if (size > rest.size()) {
    fail<CommError>("frame: truncated, ", size, " payload bytes announced, ", rest.size(), " there");
  }
  frame.head = bytes.size() - rest.size();
  frame.payload = rest.first(size);
  return frame;
}

Codec dense_codec(Codec codec) { return {IndexCoding::all, codec.lossless() ? ValueCoding::fp32 : ValueCoding::bf16}; }

std::size_t frame_head_bytes(Codec codec, std::size_t count) {
  return kFrameChecksumBytes + varint_bytes(2 * std::uint64_t{count}) + frame_size_field(codec.index, count);
}

double expected_frame_bytes(Codec codec, double entries, double width) {
  const double count = codec.index == IndexCoding::all ? width : std::clamp(entries, 0.0, width);
  return static_cast<double>(frame_head_bytes(codec, static_cast<std::size_t>(std::ceil(count)))) +
         expected_payload_bytes(codec, entries, width);
}

std::size_t dense_frame_bytes(Codec codec, std::size_t width) {
  return kFrameChecksumBytes + varint_bytes(kDenseHead) + value_codec(dense_codec(codec).value).bytes(width);
}

double expected_dense_frame_bytes(Codec codec, double width) {
  return static_cast<double>(dense_frame_bytes(codec, 0)) + expected_payload_bytes(dense_codec(codec), width, width);
}

std::size_t max_frame_bytes(Codec codec, std::size_t entries, std::size_t width, std::size_t frames) {
  const bool all = codec.index == IndexCoding::all;
  const std::size_t count = all ? width : std::min(entries, width);
  return frames * frame_head_bytes(codec, count) + max_payload_bytes(codec, entries, width, frames);
}

}  // namespace oktopk
