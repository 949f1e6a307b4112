// SPDX-License-Identifier: Apache-2.0
// u16_blocks: the range in blocks of 65536 positions. Layout: u32 counts[ceil(width / 65536)], then
// u16 offset inside its block of every index. 16 bits per index and 32 per block; runs at the speed
// of a copy, and vector code needs nothing but widening.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "oktopk/base/error.h"
#include "oktopk/codec/index_codec.h"

namespace oktopk {
namespace {

constexpr std::size_t kBlock = 65536;

std::size_t blocks_of(std::size_t width) { return (width + kBlock - 1) / kBlock; }

// Reads `count` strictly increasing offsets and adds `base`; false if they are not.
bool read_block(const std::byte* from, Index base, std::span<Index> out) {
  bool increasing = true;
  Index previous = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t offset;
    std::memcpy(&offset, from + sizeof offset * i, sizeof offset);
    increasing &= i == 0 || previous < offset;
    previous = offset;
    out[i] = base + offset;
  }
  return increasing;
}

class U16Blocks final : public IndexCodec {
 public:
  void encode(std::span<const Index> idx, Range range, Bytes& out) const override {
    const std::size_t start = out.size();
    const std::size_t blocks = blocks_of(range.width());
    out.resize(start + sizeof(std::uint32_t) * blocks + sizeof(std::uint16_t) * idx.size());
    std::byte* counts = out.data() + start;
    std::byte* to = counts + sizeof(std::uint32_t) * blocks;
    std::size_t i = 0;
    for (std::size_t block = 0; block < blocks; ++block) {
      const std::size_t first = i;
      const std::size_t end = (block + 1) * kBlock;
      for (; i < idx.size() && idx[i] - range.begin < end; ++i) {
        const auto offset = static_cast<std::uint16_t>(idx[i] - range.begin);
        std::memcpy(to + sizeof offset * i, &offset, sizeof offset);
      }
      const auto count = static_cast<std::uint32_t>(i - first);
      std::memcpy(counts + sizeof count * block, &count, sizeof count);
    }
  }

  void decode(std::span<const std::byte> payload, Range range,
              std::span<Index> out) const override {
    const std::size_t blocks = blocks_of(range.width());
    const std::byte* offsets = payload.data() + sizeof(std::uint32_t) * blocks;
    std::size_t done = 0;
    for (std::size_t block = 0; block < blocks; ++block) {
      std::uint32_t count;
      std::memcpy(&count, payload.data() + sizeof count * block, sizeof count);
      if (count > out.size() - done) {
        fail<CommError>("u16_blocks: block ", block, " counts ", count, " indices, ",
                        out.size() - done, " are left of ", out.size());
      }
      const auto base = static_cast<Index>(range.begin + block * kBlock);
      const std::byte* from = offsets + sizeof(std::uint16_t) * done;
      if (!read_block(from, base, out.subspan(done, count))) {
        fail<CommError>("u16_blocks: offsets of block ", block, " are not increasing");
      }
      done += count;
    }
    if (done != out.size()) {
      fail<CommError>("u16_blocks: blocks count ", done, " indices of ", out.size());
    }
    // Only the last block can reach beyond the range; its sum may have wrapped around.
    if (static_cast<Index>(out.back() - range.begin) >= range.width()) {
      fail<CommError>("u16_blocks: index ", out.back() - range.begin, " in a range of ",
                      range.width());
    }
  }

  SizeBounds bounds(std::size_t count, std::size_t width) const override {
    const std::size_t exact = max_bytes(count, width, 1);
    return {exact, exact};
  }

  std::size_t max_bytes(std::size_t entries, std::size_t width, std::size_t frames) const override {
    const std::size_t blocks = (width + frames * (kBlock - 1)) / kBlock;
    return sizeof(std::uint32_t) * blocks + sizeof(std::uint16_t) * entries;
  }

  double expected_bytes(double entries, double width) const override {
    return 2 * entries + 4 * std::ceil(width / double{kBlock});
  }
};

}  // namespace

const IndexCodec& index_u16_blocks() {
  static constexpr U16Blocks codec;
  return codec;
}

}  // namespace oktopk
