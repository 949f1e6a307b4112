// SPDX-License-Identifier: Apache-2.0
// bitmap: one bit per position of the range, least significant first, in ceil(width / 8) bytes. The
// cheapest above a density of about 25%; its size does not depend on the count.
#include <bit>
#include <cstring>

#include "oktopk/base/error.h"
#include "oktopk/codec/bits.h"
#include "oktopk/codec/index_codec.h"

namespace oktopk {
namespace {

class Bitmap final : public IndexCodec {
 public:
  void encode(std::span<const Index> idx, Range range, Bytes& out) const override {
    const std::size_t start = out.size();
    const std::size_t size = bytes_for_bits(range.width());
    out.resize(start + size);
    std::byte* map = out.data() + start;
    std::memset(map, 0, size);
    for (const Index i : idx) {
      const Index bit = i - range.begin;
      map[bit / 8] |= std::byte{1} << (bit % 8);
    }
  }

  void decode(std::span<const std::byte> payload, Range range,
              std::span<Index> out) const override {
    if (!padding_is_zero(payload, range.width())) {
      fail<CommError>("bitmap: bits set beyond the range of ", range.width());
    }
    if (const std::size_t ones = count_ones(payload); ones != out.size()) {
      fail<CommError>("bitmap: ", ones, " bits set for ", out.size(), " indices");
    }
    Index* to = out.data();
    for_each_one(payload, [&](std::size_t bit) { *to++ = static_cast<Index>(range.begin + bit); });
  }

  SizeBounds bounds(std::size_t /*count*/, std::size_t width) const override {
    return {bytes_for_bits(width), bytes_for_bits(width)};
  }

  std::size_t max_bytes(std::size_t /*entries*/, std::size_t width,
                        std::size_t frames) const override {
    return (width + 7 * frames) / 8;
  }

  double expected_bytes(double /*entries*/, double width) const override { return width / 8; }
};

}  // namespace

const IndexCodec& index_bitmap() {
  static constexpr Bitmap codec;
  return codec;
}

}  // namespace oktopk
