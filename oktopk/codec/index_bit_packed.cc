// SPDX-License-Identifier: Apache-2.0
// bit_packed: the gaps between indices, less one, in blocks of 512 with as many bits as the largest gap of the block
// needs (Lemire and Boytsov 2015). Layout: per block u8 width in 0..32, then the packed fields; a full block has 64 *
// width bytes, the last one is rounded up to a byte. About 10 bits per index at 1%, and the speed of a copy or two;
// indices that cluster cost more bits, at most log2(512 / density) + 1. Gaps less one cannot be wrong; only their sum
// can.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "oktopk/base/error.h"
#include "oktopk/codec/coding.h"
#include "oktopk/codec/pieces.h"
#include "oktopk/cpu/bits.h"
#include "oktopk/cpu/kernels.h"

namespace oktopk {
namespace {

// 512 gaps of this width add up to less than 2^32, so that a sum modulo 2^32 is the sum.
constexpr unsigned kSafeWidth = 22;

static_assert(kIndexPiece == kFieldBlock);

std::size_t field_blocks(std::size_t count) { return (count + kFieldBlock - 1) / kFieldBlock; }

class BitPacked final : public IndexCodec {
 public:
  std::size_t encode_to(std::span<const Index> idx, Range range, std::byte* out) const override {
    std::byte* to = out;
    std::array<Index, kFieldBlock> gaps;
    Index next = range.begin;
    for (; !idx.empty(); idx = idx.subspan(std::min(kFieldBlock, idx.size()))) {
      const auto block = idx.first(std::min(kFieldBlock, idx.size()));
      const Index any = kernels().codings.gaps(block.data(), block.size(), next, gaps.data());
      const auto width = static_cast<unsigned>(std::bit_width(any));
      *to++ = static_cast<std::byte>(width);
      pack_block(std::span(gaps).first(block.size()), width, to);
      to += bytes_for_bits(block.size() * width);
      next = block.back() + 1;
    }
    return static_cast<std::size_t>(to - out);
  }

  void decode(std::span<const std::byte> payload, Range range, std::span<Index> out) const override {
    Index next = range.begin;
    for_each_piece(out, [&](std::span<Index> block, std::size_t) {
      const std::uint64_t sum = sum_gaps(take_block(payload, block.size()), next, block);
      if (sum > range.end - next) {
        fail<CommError>("bit_packed: index ", next + sum - 1, " is not in [", range.begin, ", ", range.end, ")");
      }
      next += static_cast<Index>(sum);
    });
    if (!payload.empty()) fail<CommError>("bit_packed: ", payload.size(), " bytes are left over");
  }

  SizeBounds bounds(std::size_t count, std::size_t width) const override {
    return {field_blocks(count), max_bytes(count, width, 1)};
  }
  bool has_fixed_size() const override { return false; }

  // A block of m <= 512 indices whose gaps less one are at most y takes m * beta(y) bits, with beta the concave
  // piecewise linear function through (2^b, b + 1) that covers bit_width. All y together are below the width, so by
  // Jensen the sum over all blocks is at most entries * beta(512 * width / entries) = entries * b + 512 * width / 2^b,
  // b rounded down.
  std::size_t max_bytes(std::size_t entries, std::size_t width, std::size_t frames) const override {
    const std::size_t reach = std::min(kFieldBlock, entries) * width;
    const auto b = static_cast<unsigned>(std::bit_width(reach / entries)) - 1;
    const std::size_t bits = std::min(entries * b + (reach >> b) + 1, entries * kMaxFieldBits);
    return bytes_for_bits(bits + 7 * frames) + (entries + frames * (kFieldBlock - 1)) / kFieldBlock;
  }

  double expected_bytes(double entries, double width) const override {
    const double blocks = std::floor(entries / kFieldBlock);
    const double rest = entries - blocks * kFieldBlock;
    const double miss = 1 - entries / width;
    double bytes = blocks * (1 + kFieldBlock * expected_width(miss, kFieldBlock) / 8);
    if (rest > 0) bytes += 1 + rest * expected_width(miss, rest) / 8;
    return bytes;
  }

 private:
  // Writes the indices of a block from `next` on; returns how far they reach beyond it.
  static std::uint64_t sum_gaps(std::span<const std::byte> block, Index next, std::span<Index> out) {
    const auto width = std::to_integer<unsigned>(block.front());
    const auto fields = block.subspan(1);
    if (out.size() == kFieldBlock && width <= kSafeWidth) {
      kernels().codings.unpack_gaps(fields.data(), width, next, out.data());
      return std::uint64_t{out.back() - next} + 1;
    }
    unpack_block(fields, width, out);
    std::uint64_t sum = 0;
    for (Index& i : out) {
      sum += i;
      i = next + static_cast<Index>(sum++);
    }
    return sum;
  }

  // Takes the width byte and the fields of `count` gaps off the front of `rest`.
  static std::span<const std::byte> take_block(std::span<const std::byte>& rest, std::size_t count) {
    const unsigned width = rest.empty() ? 0 : std::to_integer<unsigned>(rest.front());
    const std::size_t size = 1 + bytes_for_bits(count * width);
    if (width > kMaxFieldBits || size > rest.size()) {
      fail<CommError>("bit_packed: a block of ", count, " gaps of ", width, " bits in ", rest.size(), " bytes");
    }
    const auto block = rest.first(size);
    if (!padding_is_zero(block, 8 + count * width)) fail<CommError>("bit_packed: padding bits are set");
    rest = rest.subspan(size);
    return block;
  }

  // The largest of `count` geometric gaps needs more than b bits unless all are below 2^b.
  static double expected_width(double miss, double count) {
    double width = 0;
    for (unsigned b = 0; b < kMaxFieldBits; ++b) {
      width += 1 - std::pow(1 - std::pow(miss, std::exp2(b)), count);
    }
    return width;
  }
};

}  // namespace

const IndexCodec& index_bit_packed() {
  static constexpr BitPacked kCodec;
  return kCodec;
}

}  // namespace oktopk
