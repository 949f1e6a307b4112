// SPDX-License-Identifier: Apache-2.0
// The index codings that compute nothing. Sizes follow from count and width:
//   coo32   index - range.begin as 32 bits each: a copy with an offset.
//   bitmap  one bit per position of the range, least significant first: the cheapest above a density of about 25%.
//   all     nothing: the frame holds every index of its range (dense blocks).
#include <array>
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

  SizeBounds bounds(std::size_t count, std::size_t) const override { return {4 * count, 4 * count}; }
  std::size_t max_bytes(std::size_t entries, std::size_t, std::size_t) const override { return 4 * entries; }
  double expected_bytes(double entries, double) const override { return 4 * entries; }
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
    if (!padding_is_zero(payload, range.width())) {
      fail<CommError>("bitmap: bits set beyond the range of ", range.width());
    }
    std::array<Index, kIndexPiece + kOnesSlack> ones;
    std::size_t at = 0;
    for_each_piece(out, [&](std::span<Index> piece, std::size_t) {
      if (next_ones(payload, at, piece.size(), ones.data()) != piece.size())
        fail<CommError>("bitmap: less bits set than ", out.size(), " indices");
      for (std::size_t i = 0; i < piece.size(); ++i) piece[i] = range.begin + ones[i];
    });
    if (next_ones(payload, at, 1, ones.data()) != 0)
      fail<CommError>("bitmap: more bits set than ", out.size(), " indices");
  }

  SizeBounds bounds(std::size_t, std::size_t width) const override {
    return {bytes_for_bits(width), bytes_for_bits(width)};
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

  SizeBounds bounds(std::size_t, std::size_t) const override { return {0, 0}; }
  std::size_t max_bytes(std::size_t, std::size_t, std::size_t) const override { return 0; }
  double expected_bytes(double, double) const override { return 0; }
};

constexpr Coo32 kCoo32;
constexpr Bitmap kBitmap;
constexpr All kAll;

}  // namespace

const IndexCodec& index_coo32() { return kCoo32; }
const IndexCodec& index_bitmap() { return kBitmap; }
const IndexCodec& index_all() { return kAll; }

}  // namespace oktopk
