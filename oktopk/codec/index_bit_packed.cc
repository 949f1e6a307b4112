// SPDX-License-Identifier: Apache-2.0
// bit_packed: the gaps between indices, less one, in blocks of 512 with as many bits as the largest
// gap of the block needs (Lemire and Boytsov 2015). Layout: per block u8 width in 0..32, then the
// fields; a full block has 64 * width bytes, the last one is rounded up to a byte. About 10 bits
// per index at 1%; indices that cluster cost more, at most log2(512 / density) + 1 bits.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "oktopk/base/error.h"
#include "oktopk/codec/bits.h"
#include "oktopk/codec/index_codec.h"

namespace oktopk {
namespace {

constexpr std::size_t kBlock = 512;
constexpr unsigned kMaxWidth = 32;

std::size_t blocks_of(std::size_t count) { return (count + kBlock - 1) / kBlock; }

class BitPacked final : public IndexCodec {
 public:
  void encode(std::span<const Index> idx, Range range, Bytes& out) const override {
    const std::size_t start = out.size();
    out.resize(start + max_bytes(idx.size(), range.width(), 1));
    std::byte* to = out.data() + start;
    std::array<Index, kBlock> gaps;
    Index next = range.begin;
    for (std::size_t first = 0; first < idx.size(); first += kBlock) {
      const std::size_t count = std::min(kBlock, idx.size() - first);
      Index any = 0;
      for (std::size_t i = 0; i < count; ++i) {
        gaps[i] = idx[first + i] - next;
        next = idx[first + i] + 1;
        any |= gaps[i];
      }
      const auto width = static_cast<unsigned>(std::bit_width(any));
      *to++ = static_cast<std::byte>(width);
      pack_bits(count, width, to, [&](std::size_t i) { return gaps[i]; });
      to += bytes_for_bits(count * width);
    }
    out.resize(static_cast<std::size_t>(to - out.data()));
  }

  void decode(std::span<const std::byte> payload, Range range,
              std::span<Index> out) const override {
    std::uint64_t next = 0;  // relative; one past the previous index
    for (std::size_t first = 0; first < out.size(); first += kBlock) {
      const std::size_t count = std::min(kBlock, out.size() - first);
      const std::span<const std::byte> fields = take_block(payload, count);
      const auto width = std::to_integer<unsigned>(fields.front());
      const BitFields gaps(fields.subspan(1), width);
      for (std::size_t i = 0; i < count; ++i) {
        next += gaps[i];
        out[first + i] = static_cast<Index>(range.begin + next);
        ++next;
      }
      if (next > range.width()) {
        fail<CommError>("bit_packed: index ", next - 1, " in a range of ", range.width());
      }
    }
    if (!payload.empty()) {
      fail<CommError>("bit_packed: ", payload.size(), " bytes are left over");
    }
  }

  SizeBounds bounds(std::size_t count, std::size_t width) const override {
    return {blocks_of(count), max_bytes(count, width, 1)};
  }

  // A block of m <= 512 indices whose gaps less one are at most y takes m * beta(y) bits, with beta
  // the concave piecewise linear function through (2^b, b + 1) that covers bit_width. All y
  // together are below the width, so by Jensen the sum over all blocks is at most entries *
  // beta(512 * width / entries) = entries * b + 512 * width / 2^b, b rounded down.
  std::size_t max_bytes(std::size_t entries, std::size_t width, std::size_t frames) const override {
    const std::size_t reach = std::min(kBlock, entries) * width;
    const auto b = static_cast<unsigned>(std::bit_width(reach / entries)) - 1;
    const std::size_t bits = std::min(entries * b + (reach >> b) + 1, entries * kMaxWidth);
    return bytes_for_bits(bits + 7 * frames) + (entries + frames * (kBlock - 1)) / kBlock;
  }

  double expected_bytes(double entries, double width) const override {
    const double blocks = std::floor(entries / kBlock);
    const double rest = entries - blocks * kBlock;
    const double miss = 1 - entries / width;
    double bytes = blocks * (1 + kBlock * expected_width(miss, kBlock) / 8);
    if (rest > 0) bytes += 1 + rest * expected_width(miss, rest) / 8;
    return bytes;
  }

 private:
  // Cuts the width byte and the fields of `count` gaps off the front of `payload`.
  static std::span<const std::byte> take_block(std::span<const std::byte>& payload,
                                               std::size_t count) {
    const unsigned width = payload.empty() ? 0 : std::to_integer<unsigned>(payload.front());
    const std::size_t size = 1 + bytes_for_bits(count * width);
    if (width > kMaxWidth || size > payload.size()) {
      fail<CommError>("bit_packed: a block of ", count, " gaps of ", width, " bits in ",
                      payload.size(), " bytes");
    }
    const auto block = payload.first(size);
    if (!padding_is_zero(block, 8 + count * width)) {
      fail<CommError>("bit_packed: padding bits are set");
    }
    payload = payload.subspan(size);
    return block;
  }

  // The largest of `count` geometric gaps needs more than b bits unless all are below 2^b.
  static double expected_width(double miss, double count) {
    double width = 0;
    for (unsigned b = 0; b < kMaxWidth; ++b) {
      width += 1 - std::pow(1 - std::pow(miss, std::exp2(b)), count);
    }
    return width;
  }
};

}  // namespace

const IndexCodec& index_bit_packed() {
  static constexpr BitPacked codec;
  return codec;
}

}  // namespace oktopk
