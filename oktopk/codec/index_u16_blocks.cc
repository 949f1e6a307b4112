// SPDX-License-Identifier: Apache-2.0
// u16_blocks: the range in blocks of 65536 positions. Layout: u32 counts[ceil(width / 65536)], then u16 offset inside
// its block of every index. 16 bits per index and 32 per block; runs at the speed of a copy.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "oktopk/base/error.h"
#include "oktopk/codec/coding.h"
#include "oktopk/codec/pieces.h"

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

  // Block by block, so that the counts are checked before the offsets are read.
  void decode(std::span<const std::byte> payload, Range range, std::span<Index> out) const override {
    const std::size_t blocks = blocks_of(range.width());
    const std::byte* offsets = payload.data() + sizeof(std::uint32_t) * blocks;
    Index next = range.begin;
    auto rest = out;
    for (std::size_t block = 0; block < blocks; ++block) {
      std::uint32_t count;
      std::memcpy(&count, payload.data() + sizeof count * block, sizeof count);
      if (count > rest.size()) fail_counts(out.size());
      const auto base = static_cast<Index>(range.begin + block * kU16Block);
      for_each_piece(rest.first(count), [&](std::span<Index> piece, std::size_t) {
        for (Index& i : piece) {
          std::uint16_t offset;
          std::memcpy(&offset, offsets, sizeof offset);
          i = base + offset;
          offsets += sizeof offset;
        }
        next = accept(piece, range, next, "u16_blocks");
      });
      rest = rest.subspan(count);
    }
    if (!rest.empty()) fail_counts(out.size());
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
  [[noreturn]] static void fail_counts(std::size_t count) {
    fail<CommError>("u16_blocks: the blocks do not count ", count, " indices");
  }
};

}  // namespace

const IndexCodec& index_u16_blocks() {
  static constexpr U16Blocks kCodec;
  return kCodec;
}

}  // namespace oktopk
