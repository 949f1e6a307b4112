// SPDX-License-Identifier: Apache-2.0
// The index codings without packed fields. Sizes follow from count and width:
//   coo32       index - range.begin as 32 bits each: a copy with an offset.
//   u16_blocks  the range in blocks of 65536 positions: u32 counts[ceil(width / 65536)], then the u16 offset inside its
//               block of every index. Runs at the speed of a copy.
//   bitmap      one bit per position of the range, least significant first: the cheapest above a density of about 25%.
//   all         nothing: the frame holds every index of its range (dense blocks).
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

#include "oktopk/base/error.h"
#include "oktopk/codec/coding.h"
#include "oktopk/codec/pieces.h"
#include "oktopk/cpu/bits.h"

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

  void decode(std::span<const std::byte> payload, Range range, std::span<Index> out) const override {
    Index next = range.begin;
    for_each_piece(out, [&](std::span<Index> piece, std::size_t first) {
      std::memcpy(piece.data(), payload.data() + sizeof(Index) * first, piece.size_bytes());
      for (Index& i : piece) i += range.begin;
      next = accept(piece, range, next, "coo32");
    });
  }

  std::size_t max_bytes(std::size_t entries, std::size_t, std::size_t) const override { return 4 * entries; }
  double expected_bytes(double entries, double) const override { return 4 * entries; }
};

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

class Bitmap final : public IndexCodec {
 public:
  std::size_t encode_to(std::span<const Index> idx, Range range, std::byte* out) const override {
    const std::size_t size = bytes_for_bits(range.width());
    std::memset(out, 0, size);
    set_ones(idx.size(), out, [&](std::size_t i) { return idx[i] - range.begin; });
    return size;
  }

  void decode(std::span<const std::byte> payload, Range range, std::span<Index> out) const override {
    if (!padding_is_zero(payload, range.width()))
      fail<CommError>("bitmap: bits set beyond the range of ", range.width());
    std::array<Index, kFieldBlock + kOnesSlack> ones;
    std::size_t at = 0;
    for_each_piece(out, [&](std::span<Index> piece, std::size_t) {
      if (next_ones(payload, at, piece.size(), ones.data()) != piece.size())
        fail<CommError>("bitmap: less bits set than ", out.size(), " indices");
      for (std::size_t i = 0; i < piece.size(); ++i) piece[i] = range.begin + ones[i];
    });
    if (next_ones(payload, at, 1, ones.data()) != 0)
      fail<CommError>("bitmap: more bits set than ", out.size(), " indices");
  }

  std::size_t max_bytes(std::size_t, std::size_t width, std::size_t frames) const override {
    return (width + 7 * frames) / 8;
  }
  double expected_bytes(double, double width) const override { return width / 8; }
};

class All final : public IndexCodec {
 public:
  std::size_t encode_to(std::span<const Index>, Range, std::byte*) const override { return 0; }

  void decode(std::span<const std::byte>, Range range, std::span<Index> out) const override {
    std::iota(out.begin(), out.end(), range.begin);
  }

  std::size_t max_bytes(std::size_t, std::size_t, std::size_t) const override { return 0; }
  double expected_bytes(double, double) const override { return 0; }
};

constexpr Coo32 kCoo32;
constexpr U16Blocks kU16Blocks;
constexpr Bitmap kBitmap;
constexpr All kAll;

}  // namespace

const IndexCodec& index_coo32() { return kCoo32; }
const IndexCodec& index_u16_blocks() { return kU16Blocks; }
const IndexCodec& index_bitmap() { return kBitmap; }
const IndexCodec& index_all() { return kAll; }

}  // namespace oktopk
