// SPDX-License-Identifier: Apache-2.0
// The index codings. Sizes of the first four follow from count and width:
//   coo32       index - range.begin as 32 bits each: a copy with an offset.
//   u16_blocks  the range in blocks of 65536 positions: u32 counts[ceil(width / 65536)], then the u16 offset inside its
//               block of every index. Runs at the speed of a copy.
//   bitmap      one bit per position of the range, least significant first: the cheapest above a density of about 25%.
//   all         nothing: the frame holds every index of its range (dense blocks).
//   bit_packed  the gaps between indices, less one, in blocks of 512 with as many bits as the largest gap of the block
//               needs (Lemire and Boytsov 2015). Layout: per block u8 width in 0..32, then the packed fields; a full
//               block has 64 * width bytes, the last one is rounded up to a byte. About 10 bits per index at 1%, and
//               the speed of a copy or two. Indices that cluster cost more, at most log2(512 / density) + 1 bits.
//   elias_fano  (Elias 1974, Fano 1971) with l = floor(log2(width / count)), the low l bits of every index packed in
//               ceil(count * l / 8) bytes, then count + ((width - 1) >> l) bits, of which index number i sets bit
//               (index >> l) + i. At most l + 2 + 1 / 2^l bits per index, whether the indices cluster or not: within
//               0.6 bit of the entropy. Where more than a quarter of the range is there, a bit for each of its indices
//               takes less room: then it is a bitmap.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>

#include "oktopk/base/error.h"
#include "oktopk/codec/coding.h"
#include "oktopk/cpu/bits.h"
#include "oktopk/cpu/kernels.h"

namespace oktopk {
namespace {

// Calls decode(piece, first) for parts of `out` of kFieldBlock indices, which stay in the nearest cache while they are
// decoded and checked. The last part may be shorter; `first` is the number of the part's first index.
template <class Decode>
void for_each_piece(std::span<Index> out, Decode decode) {
  for (std::size_t first = 0; first < out.size(); first += kFieldBlock)
    decode(out.subspan(first, std::min(kFieldBlock, out.size() - first)), first);
}

// Throws CommError unless the decoded indices of a piece increase and lie in [next, range.end); returns one past the
// last. Indices that wrapped around are found, too: they lie below `next`, or break the order.
Index accept(std::span<const Index> piece, Range range, Index next, const char* coding) {
  if (!increases(piece) || piece.front() < next) fail<CommError>(coding, ": the indices are not increasing");
  if (piece.back() >= range.end)
    fail<CommError>(coding, ": index ", piece.back(), " is not in [", range.begin, ", ", range.end, ")");
  return piece.back() + 1;
}

// A full block of fields is packed in 16 lanes, for vector code; a shorter one field after field, so that it takes no
// more bytes than it needs. Writes bytes_for_bits(fields.size() * width) bytes.
void pack_block(std::span<const std::uint32_t> fields, unsigned width, std::byte* out) {
  if (fields.size() == kFieldBlock) return kernels().codings.pack(fields.data(), width, out);
  pack_bits(fields.size(), width, out, [&](std::size_t i) { return fields[i]; });
}

// REQUIRES: from.size() == bytes_for_bits(out.size() * width).
void unpack_block(std::span<const std::byte> from, unsigned width, std::span<std::uint32_t> out) {
  if (out.size() == kFieldBlock) return kernels().codings.unpack(from.data(), width, out.data());
  unpack_bits(from, width, out);
}

// Lists the positions, modulo 2^32, of `count` ones from bit `at` on, or of as many as there are; returns how many, and
// moves `at` behind them. `out` has room for count + kOnesSlack.
std::size_t next_ones(std::span<const std::byte> bytes, std::size_t& at, std::size_t count, Index* out) {
  const std::size_t whole = bytes.size() / 8;
  std::size_t word = at / 64;
  std::size_t found = 0;
  const auto list_part = [&](unsigned skipped) {
    const std::size_t size = std::min<std::size_t>(8, bytes.size() - 8 * word);
    const std::uint64_t bits = load_tail(bytes.data() + 8 * word, size) >> skipped << skipped;
    for (std::uint64_t rest = bits; rest != 0; rest &= rest - 1)
      out[found++] = static_cast<Index>(64 * word + static_cast<unsigned>(std::countr_zero(rest)));
    ++word;
  };
  if (at % 64 != 0) list_part(static_cast<unsigned>(at % 64));
  if (found < count && word < whole) {
    const auto rest = bytes.subspan(8 * word, 8 * (whole - word));
    const auto listed = kernels().codings.list_ones(rest, static_cast<Index>(64 * word), out + found, count - found);
    found += listed.ones;
    word += listed.words;
  }
  if (found < count && word == whole && bytes.size() % 8 != 0) list_part(0);
  // Ones that were listed in vain all lie in the last word.
  at = found > count ? 64 * (word - 1) + out[count] % 64 : 64 * word;
  return std::min(found, count);
}

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

constexpr Bitmap kBitmap;

// 512 gaps of this width add up to less than 2^32, so that a sum modulo 2^32 is the sum.
constexpr unsigned kSafeWidth = 22;

class BitPacked final : public IndexCodec {
 public:
  std::size_t encode_to(std::span<const Index> idx, Range range, std::byte* out) const override {
    std::byte* to = out;
    std::array<Index, kFieldBlock> gaps;
    Index next = range.begin;
    for (; !idx.empty(); idx = idx.subspan(std::min(kFieldBlock, idx.size()))) {
      const auto block = idx.first(std::min(kFieldBlock, idx.size()));
      const Index any = kernels().codings.gaps(block.data(), block.size(), next, gaps.data());
      const auto width = static_cast<unsigned>(std::bit_width(any));
      *to++ = static_cast<std::byte>(width);
      pack_block(std::span(gaps).first(block.size()), width, to);
      to += bytes_for_bits(block.size() * width);
      next = block.back() + 1;
    }
    return static_cast<std::size_t>(to - out);
  }

  void decode(std::span<const std::byte> payload, Range range, std::span<Index> out) const override {
    Index next = range.begin;
    for_each_piece(out, [&](std::span<Index> block, std::size_t) {
      const std::uint64_t sum = sum_gaps(take_block(payload, block.size()), next, block);
      if (sum > range.end - next)
        fail<CommError>("bit_packed: index ", next + sum - 1, " is not in [", range.begin, ", ", range.end, ")");
      next += static_cast<Index>(sum);
    });
    if (!payload.empty()) fail<CommError>("bit_packed: ", payload.size(), " bytes are left over");
  }

  SizeBounds bounds(std::size_t count, std::size_t width) const override {
    return {(count + kFieldBlock - 1) / kFieldBlock, max_bytes(count, width, 1)};
  }
  bool has_fixed_size() const override { return false; }

  // A block of m <= 512 indices whose gaps less one are at most y takes m * beta(y) bits, with beta the concave
  // piecewise linear function through (2^b, b + 1) that covers bit_width. All y together are below the width, so by
  // Jensen the sum over all blocks is at most entries * beta(512 * width / entries) = entries * b + 512 * width / 2^b,
  // b rounded down.
  std::size_t max_bytes(std::size_t entries, std::size_t width, std::size_t frames) const override {
    const std::size_t reach = std::min(kFieldBlock, entries) * width;
    const auto b = static_cast<unsigned>(std::bit_width(reach / entries)) - 1;
    const std::size_t bits = std::min(entries * b + (reach >> b) + 1, entries * kMaxFieldBits);
    return bytes_for_bits(bits + 7 * frames) + (entries + frames * (kFieldBlock - 1)) / kFieldBlock;
  }

  double expected_bytes(double entries, double width) const override {
    const double blocks = std::floor(entries / kFieldBlock);
    const double rest = entries - blocks * kFieldBlock;
    const double miss = 1 - entries / width;
    double bytes = blocks * (1 + kFieldBlock * expected_width(miss, kFieldBlock) / 8);
    if (rest > 0) bytes += 1 + rest * expected_width(miss, rest) / 8;
    return bytes;
  }

 private:
  // Writes the indices of a block from `next` on; returns how far they reach beyond it.
  static std::uint64_t sum_gaps(std::span<const std::byte> block, Index next, std::span<Index> out) {
    const auto width = std::to_integer<unsigned>(block.front());
    const auto fields = block.subspan(1);
    if (out.size() == kFieldBlock && width <= kSafeWidth) {
      kernels().codings.unpack_gaps(fields.data(), width, next, out.data());
      return std::uint64_t{out.back() - next} + 1;
    }
    unpack_block(fields, width, out);
    std::uint64_t sum = 0;
    for (Index& i : out) {
      sum += i;
      i = next + static_cast<Index>(sum++);
    }
    return sum;
  }

  // Takes the width byte and the fields of `count` gaps off the front of `rest`.
  static std::span<const std::byte> take_block(std::span<const std::byte>& rest, std::size_t count) {
    const unsigned width = rest.empty() ? 0 : std::to_integer<unsigned>(rest.front());
    const std::size_t size = 1 + bytes_for_bits(count * width);
    if (width > kMaxFieldBits || size > rest.size())
      fail<CommError>("bit_packed: a block of ", count, " gaps of ", width, " bits in ", rest.size(), " bytes");
    const auto block = rest.first(size);
    if (!padding_is_zero(block, 8 + count * width)) fail<CommError>("bit_packed: padding bits are set");
    rest = rest.subspan(size);
    return block;
  }

  // The largest of `count` geometric gaps needs more than b bits unless all are below 2^b.
  static double expected_width(double miss, double count) {
    double width = 0;
    for (unsigned b = 0; b < kMaxFieldBits; ++b) width += 1 - std::pow(1 - std::pow(miss, std::exp2(b)), count);
    return width;
  }
};

// The sizes of the two parts of elias_fano.
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
    if (is_bitmap(idx.size(), range.width())) return kBitmap.encode_to(idx, range, out);
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
    if (is_bitmap(out.size(), range.width())) return kBitmap.decode(payload, range, out);
    const Layout layout(out.size(), range.width());
    const unsigned width = layout.low_width;
    const auto low = payload.first(layout.low_bytes());
    const auto high = payload.subspan(layout.low_bytes());
    if (!padding_is_zero(low, layout.low_bits) || !padding_is_zero(high, layout.high_bits))
      fail<CommError>("elias_fano: padding bits are set");
    std::array<Index, kFieldBlock + kOnesSlack> ones;
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
    if (is_bitmap(count, width)) return kBitmap.bounds(count, width);
    const Layout layout(count, width);
    const std::size_t exact = layout.low_bytes() + layout.high_bytes();
    return {exact, exact};
  }

  // The smaller one of count * (l + 1) + width / 2^l and width is concave in (count, width) and homogeneous, so cutting
  // a frame never raises the sum of it; cuts only add the rounding up to bytes, twice per frame.
  std::size_t max_bytes(std::size_t entries, std::size_t width, std::size_t frames) const override {
    const Layout layout(entries, width);
    const std::size_t bits = layout.low_bits + entries + (width >> layout.low_width) + 1;
    return bytes_for_bits((is_bitmap(entries, width) ? width : bits) + 14 * frames);
  }

  double expected_bytes(double entries, double width) const override {
    if (4 * entries > width) return kBitmap.expected_bytes(entries, width);
    const double low_width = std::floor(std::log2(width / entries));
    return (entries * (low_width + 1) + width * std::exp2(-low_width)) / 8;
  }

 private:
  static bool is_bitmap(std::size_t count, std::size_t width) { return 4 * count > width; }
};

constexpr Coo32 kCoo32;
constexpr U16Blocks kU16Blocks;
constexpr BitPacked kBitPacked;
constexpr EliasFano kEliasFano;
constexpr All kAll;

}  // namespace

const IndexCodec& index_coo32() { return kCoo32; }
const IndexCodec& index_u16_blocks() { return kU16Blocks; }
const IndexCodec& index_bit_packed() { return kBitPacked; }
const IndexCodec& index_elias_fano() { return kEliasFano; }
const IndexCodec& index_bitmap() { return kBitmap; }
const IndexCodec& index_all() { return kAll; }

}  // namespace oktopk
