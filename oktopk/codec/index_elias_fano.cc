// SPDX-License-Identifier: Apache-2.0
// elias_fano (Elias 1974, Fano 1971): with l = floor(log2(width / count)), the low l bits of every index packed, then a
// bit vector in which index number i sets bit (index >> l) + i. Layout: low part in ceil(count * l / 8) bytes, high
// part of count + ((width - 1) >> l) bits. The size follows from count and width: at most l + 2 + 1 / 2^l bits per
// index, within 0.6 bit of the entropy, whether the indices cluster or not.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "oktopk/base/error.h"
#include "oktopk/codec/coding.h"
#include "oktopk/codec/pieces.h"
#include "oktopk/cpu/bits.h"
#include "oktopk/cpu/kernels.h"

namespace oktopk {
namespace {

struct Layout {
  Layout(std::size_t count, std::size_t width)
      : low_width(static_cast<unsigned>(std::bit_width(width / count)) - 1),
        low_bits(count * low_width),
        high_bits(count + ((width - 1) >> low_width)) {}

  std::size_t low_bytes() const { return bytes_for_bits(low_bits); }
  std::size_t high_bytes() const { return bytes_for_bits(high_bits); }

  unsigned low_width;
  std::size_t low_bits;
  std::size_t high_bits;
};

class EliasFano final : public IndexCodec {
 public:
  std::size_t encode_to(std::span<const Index> idx, Range range, std::byte* out) const override {
    const Layout layout(idx.size(), range.width());
    const unsigned width = layout.low_width;
    const auto mask = static_cast<Index>(low_mask(width));
    std::byte* const high = out + layout.low_bytes();
    for (std::size_t first = 0; first < idx.size(); first += kFieldBlock) {
      const auto block = idx.subspan(first, std::min(kFieldBlock, idx.size() - first));
      std::array<Index, kFieldBlock> low;
      for (std::size_t i = 0; i < block.size(); ++i) low[i] = (block[i] - range.begin) & mask;
      pack_block(std::span(low).first(block.size()), width, out + first * width / 8);
    }
    std::memset(high, 0, layout.high_bytes());
    kernels().codings.set_high_bits({range.begin, width}, idx.data(), idx.size(), high);
    return layout.low_bytes() + layout.high_bytes();
  }

  void decode(std::span<const std::byte> payload, Range range, std::span<Index> out) const override {
    const Layout layout(out.size(), range.width());
    const unsigned width = layout.low_width;
    const auto low = payload.first(layout.low_bytes());
    const auto high = payload.subspan(layout.low_bytes());
    if (!padding_is_zero(low, layout.low_bits) || !padding_is_zero(high, layout.high_bits)) {
      fail<CommError>("elias_fano: padding bits are set");
    }
    std::array<Index, kIndexPiece + kOnesSlack> ones;
    std::size_t at = 0;  // bit of the high part
    Index next = range.begin;
    for_each_piece(out, [&](std::span<Index> piece, std::size_t first) {
      if (next_ones(high, at, piece.size(), ones.data()) != piece.size())
        fail<CommError>("elias_fano: less bits set than ", out.size(), " indices");
      unpack_block(low.subspan(first * width / 8, bytes_for_bits(piece.size() * width)), width, piece);
      const HighBits parts{ones.data(), static_cast<std::uint32_t>(first), width, range.begin};
      kernels().codings.join(parts, piece.data(), piece.size());
      next = accept(piece, range, next, "elias_fano");
    });
    if (next_ones(high, at, 1, ones.data()) != 0)
      fail<CommError>("elias_fano: more bits set than ", out.size(), " indices");
  }

  SizeBounds bounds(std::size_t count, std::size_t width) const override {
    const Layout layout(count, width);
    const std::size_t exact = layout.low_bytes() + layout.high_bytes();
    return {exact, exact};
  }

  // count * (l + 1) + width / 2^l is concave in (count, width) and homogeneous, so cutting a frame never raises the sum
  // of it; cuts only add the rounding up to bytes, twice per frame.
  std::size_t max_bytes(std::size_t entries, std::size_t width, std::size_t frames) const override {
    const Layout layout(entries, width);
    const std::size_t bits = layout.low_bits + entries + (width >> layout.low_width) + 1;
    return bytes_for_bits(bits + 14 * frames);
  }

  double expected_bytes(double entries, double width) const override {
    const double low_width = std::floor(std::log2(width / entries));
    return (entries * (low_width + 1) + width * std::exp2(-low_width)) / 8;
  }
};

}  // namespace

const IndexCodec& index_elias_fano() {
  static constexpr EliasFano kCodec;
  return kCodec;
}

}  // namespace oktopk
