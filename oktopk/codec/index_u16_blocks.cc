// SPDX-License-Identifier: Apache-2.0
// u16_blocks: the range in blocks of 65536 positions. Layout: u32 counts[ceil(width / 65536)], then
// u16 offset inside its block of every index. 16 bits per index and 32 per block; runs at the speed
// of a copy, and vector code needs nothing but widening.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "oktopk/base/error.h"
#include "oktopk/codec/index_codec.h"
#include "oktopk/codec/index_piece.h"

namespace oktopk {
namespace {

constexpr std::size_t kU16Block = 65536;

std::size_t blocks_of(std::size_t width) { return (width + kU16Block - 1) / kU16Block; }

class U16Blocks final : public IndexCodec {
 public:
  std::size_t encode_to(std::span<const Index> idx, Range range, std::byte* out) const override {
    const std::size_t blocks = blocks_of(range.width());
    auto rest = idx;
    for (std::size_t block = 0; block < blocks; ++block) {
      const std::size_t end = range.begin + (block + 1) * kU16Block;
      const auto behind = std::partition_point(rest.begin(), rest.end(), [end](Index i) { return i < end; });
      const auto count = static_cast<std::uint32_t>(behind - rest.begin());
      std::memcpy(out + sizeof count * block, &count, sizeof count);
      rest = rest.subspan(count);
    }
    std::byte* offsets = out + sizeof(std::uint32_t) * blocks;
    for (std::size_t i = 0; i < idx.size(); ++i) {
      const auto offset = static_cast<std::uint16_t>(idx[i] - range.begin);
      std::memcpy(offsets + sizeof offset * i, &offset, sizeof offset);
    }
    return sizeof(std::uint32_t) * blocks + sizeof(std::uint16_t) * idx.size();
  }

  // The cursor is at block number `at`, with `left` indices of the block before it to come.
  void decode_next(IndexCursor& cursor, std::span<Index> out) const override {
    for_each_piece(out, [&](std::span<Index> piece) {
      for (std::size_t done = 0; done < piece.size();) {
        if (cursor.left == 0) next_block(cursor);
        const std::size_t count = std::min(cursor.left, piece.size() - done);
        widen(cursor, cursor.done + done, piece.subspan(done, count));
        cursor.left -= count;
        done += count;
      }
      accept(cursor, piece, "u16_blocks");
    });
    if (cursor.done != cursor.count) return;
    while (cursor.left == 0 && cursor.at < blocks_of(cursor.range.width())) next_block(cursor);
    if (cursor.left != 0) fail_counts(cursor);
  }

  SizeBounds bounds(std::size_t count, std::size_t width) const override {
    const std::size_t exact = max_bytes(count, width, 1);
    return {exact, exact};
  }

  std::size_t max_bytes(std::size_t entries, std::size_t width, std::size_t frames) const override {
    const std::size_t blocks = (width + frames * (kU16Block - 1)) / kU16Block;
    return sizeof(std::uint32_t) * blocks + sizeof(std::uint16_t) * entries;
  }

  double expected_bytes(double entries, double width) const override {
    return 2 * entries + 4 * std::ceil(width / double{kU16Block});
  }

 private:
  static void next_block(IndexCursor& cursor) {
    if (cursor.at == blocks_of(cursor.range.width())) fail_counts(cursor);
    std::uint32_t count;
    std::memcpy(&count, cursor.payload.data() + sizeof count * cursor.at, sizeof count);
    cursor.left = count;
    ++cursor.at;
  }

  // Index number `first` and those behind it, out.size() of the block that the cursor is in.
  static void widen(const IndexCursor& cursor, std::size_t first, std::span<Index> out) {
    const std::byte* from =
        cursor.payload.data() + sizeof(std::uint32_t) * blocks_of(cursor.range.width()) + sizeof(std::uint16_t) * first;
    const auto base = static_cast<Index>(cursor.range.begin + (cursor.at - 1) * kU16Block);
    for (std::size_t i = 0; i < out.size(); ++i) {
      std::uint16_t offset;
      std::memcpy(&offset, from + sizeof offset * i, sizeof offset);
      out[i] = base + offset;
    }
  }

  [[noreturn]] static void fail_counts(const IndexCursor& cursor) {
    fail<CommError>("u16_blocks: the blocks do not count ", cursor.count, " indices");
  }
};

}  // namespace

const IndexCodec& index_u16_blocks() {
  static constexpr U16Blocks codec;
  return codec;
}

}  // namespace oktopk
