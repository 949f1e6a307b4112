// SPDX-License-Identifier: Apache-2.0
// bitmap: one bit per position of the range, least significant first, in ceil(width / 8) bytes. The
// cheapest above a density of about 25%; its size does not depend on the count.
#include <array>
#include <cstring>

#include "oktopk/base/error.h"
#include "oktopk/codec/bits.h"
#include "oktopk/codec/index_codec.h"
#include "oktopk/codec/index_piece.h"
#include "oktopk/codec/ones.h"

namespace oktopk {
namespace {

class Bitmap final : public IndexCodec {
 public:
  std::size_t encode_to(std::span<const Index> idx, Range range, std::byte* out) const override {
    const std::size_t size = bytes_for_bits(range.width());
    std::memset(out, 0, size);
    set_ones(idx.size(), out, [&](std::size_t i) { return idx[i] - range.begin; });
    return size;
  }

  void decode_next(IndexCursor& cursor, std::span<Index> out) const override {
    if (!padding_is_zero(cursor.payload, cursor.range.width())) {
      fail<CommError>("bitmap: bits set beyond the range of ", cursor.range.width());
    }
    std::array<Index, kIndexPiece + kOnesSlack> ones;
    for_each_piece(out, [&](std::span<Index> piece) {
      const std::size_t found = next_ones(cursor.payload, cursor.at, piece.size(), ones.data());
      cursor.done += found;
      if (found != piece.size()) fail_count(cursor, "less");
      for (std::size_t i = 0; i < found; ++i) piece[i] = cursor.range.begin + ones[i];
    });
    cursor.next = out.back() + 1;
    if (cursor.done != cursor.count) return;
    if (next_ones(cursor.payload, cursor.at, 1, ones.data()) != 0) {
      fail_count(cursor, "more");
    }
  }

  SizeBounds bounds(std::size_t /*count*/, std::size_t width) const override {
    return {bytes_for_bits(width), bytes_for_bits(width)};
  }

  std::size_t max_bytes(std::size_t /*entries*/, std::size_t width, std::size_t frames) const override {
    return (width + 7 * frames) / 8;
  }

  double expected_bytes(double /*entries*/, double width) const override { return width / 8; }

 private:
  [[noreturn]] static void fail_count(const IndexCursor& cursor, const char* than) {
    fail<CommError>("bitmap: ", than, " bits set than ", cursor.count, " indices");
  }
};

}  // namespace

const IndexCodec& index_bitmap() {
  static constexpr Bitmap codec;
  return codec;
}

}  // namespace oktopk
