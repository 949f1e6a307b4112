// SPDX-License-Identifier: Apache-2.0
// elias_fano (Elias 1974, Fano 1971): with l = floor(log2(width / count)), the low l bits of every
// index packed, then a bit vector in which index number i sets bit (index >> l) + i. Layout: low
// part in ceil(count * l / 8) bytes, high part of count + ((width - 1) >> l) bits. The size follows
// from count and width; at most l + 2 + 1 / 2^l bits per index, within 0.6 bit of the entropy,
// whether the indices cluster or not.
#include <bit>
#include <cmath>
#include <cstring>

#include "oktopk/base/error.h"
#include "oktopk/codec/bits.h"
#include "oktopk/codec/index_codec.h"

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
  void encode(std::span<const Index> idx, Range range, Bytes& out) const override {
    const Layout layout(idx.size(), range.width());
    const std::size_t start = out.size();
    out.resize(start + layout.low_bytes() + layout.high_bytes());
    std::byte* low = out.data() + start;
    std::byte* high = low + layout.low_bytes();
    const std::uint64_t mask = low_mask(layout.low_width);
    pack_bits(idx.size(), layout.low_width, low,
              [&](std::size_t i) { return (idx[i] - range.begin) & mask; });
    std::memset(high, 0, layout.high_bytes());
    for (std::size_t i = 0; i < idx.size(); ++i) {
      const std::size_t bit = ((idx[i] - range.begin) >> layout.low_width) + i;
      high[bit / 8] |= std::byte{1} << (bit % 8);
    }
  }

  void decode(std::span<const std::byte> payload, Range range,
              std::span<Index> out) const override {
    const Layout layout(out.size(), range.width());
    const auto low = payload.first(layout.low_bytes());
    const auto high = payload.subspan(layout.low_bytes());
    if (!padding_is_zero(low, layout.low_bits) || !padding_is_zero(high, layout.high_bits)) {
      fail<CommError>("elias_fano: padding bits are set");
    }
    // With exactly `count` ones no high part exceeds (width - 1) >> l, so 32 bits are enough below.
    if (const std::size_t ones = count_ones(high); ones != out.size()) {
      fail<CommError>("elias_fano: ", ones, " bits set for ", out.size(), " indices");
    }
    const BitFields fields(low, layout.low_width);
    bool increasing = true;
    std::size_t i = 0;
    std::uint64_t next = 0;
    for_each_one(high, [&](std::size_t bit) {
      const std::uint64_t relative = ((bit - i) << layout.low_width) | fields[i];
      increasing &= relative >= next;
      next = relative + 1;
      out[i++] = static_cast<Index>(range.begin + relative);
    });
    if (!increasing) fail<CommError>("elias_fano: ", i, " indices are not increasing");
    if (next > range.width()) {
      fail<CommError>("elias_fano: index ", next - 1, " in a range of ", range.width());
    }
  }

  SizeBounds bounds(std::size_t count, std::size_t width) const override {
    const Layout layout(count, width);
    const std::size_t exact = layout.low_bytes() + layout.high_bytes();
    return {exact, exact};
  }

  // count * (l + 1) + width / 2^l is concave in (count, width) and homogeneous, so cutting a frame
  // only ever lowers the sum of it; what cuts add is rounding up to bytes, twice per frame.
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
  static constexpr EliasFano codec;
  return codec;
}

}  // namespace oktopk
