// SPDX-License-Identifier: Apache-2.0
// coo32: index - range.begin as 32 bits each. 32 bits per index; a copy with an offset.
#include <cstring>

#include "oktopk/codec/index_codec.h"
#include "oktopk/codec/index_piece.h"

namespace oktopk {
namespace {

class Coo32 final : public IndexCodec {
 public:
  std::size_t encode_to(std::span<const Index> idx, Range range, std::byte* out) const override {
    for (std::size_t i = 0; i < idx.size(); ++i) {
      const Index relative = idx[i] - range.begin;
      std::memcpy(out + sizeof relative * i, &relative, sizeof relative);
    }
    return sizeof(Index) * idx.size();
  }

  void decode_next(IndexCursor& cursor, std::span<Index> out) const override {
    const std::byte* from = cursor.payload.data() + sizeof(Index) * cursor.done;
    for_each_piece(out, [&](std::span<Index> piece) {
      for (std::size_t i = 0; i < piece.size(); ++i) {
        Index relative;
        std::memcpy(&relative, from + sizeof relative * i, sizeof relative);
        piece[i] = cursor.range.begin + relative;
      }
      from += sizeof(Index) * piece.size();
      accept(cursor, piece, "coo32");
    });
  }

  SizeBounds bounds(std::size_t count, std::size_t /*width*/) const override {
    return {sizeof(Index) * count, sizeof(Index) * count};
  }

  std::size_t max_bytes(std::size_t entries, std::size_t /*width*/, std::size_t /*frames*/) const override {
    return sizeof(Index) * entries;
  }

  double expected_bytes(double entries, double /*width*/) const override { return 4 * entries; }
};

}  // namespace

const IndexCodec& index_coo32() {
  static constexpr Coo32 codec;
  return codec;
}

}  // namespace oktopk
