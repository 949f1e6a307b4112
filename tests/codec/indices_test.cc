// SPDX-License-Identifier: Apache-2.0
// The bytes of every index coding, and bytes that none of them may accept. conformance_test.cc has what holds for all.
#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "oktopk/codec/coding.h"
#include "tests/codec/samples.h"

namespace oktopk::testing::indices_test {
namespace {

using Numbers = std::vector<unsigned>;

Numbers payload_of(const IndexCodec& codec, Range range, const std::vector<Index>& idx) {
  Bytes bytes;
  codec.encode(idx, range, bytes);
  Numbers numbers;
  for (const std::byte b : bytes) numbers.push_back(std::to_integer<unsigned>(b));
  return numbers;
}

std::vector<Index> indices_of(const IndexCodec& codec, Range range, std::size_t count, const Numbers& payload) {
  Bytes bytes;
  for (const unsigned n : payload) bytes.push_back(static_cast<std::byte>(n));
  std::vector<Index> idx(count);
  codec.decode(bytes, range, idx);
  return idx;
}

std::vector<Index> count_up(Index count) {
  std::vector<Index> idx(count);
  for (Index i = 0; i < count; ++i) idx[i] = i;
  return idx;
}

std::vector<Index> with_a_last(std::vector<Index> idx, Index last) {
  idx.push_back(last);
  return idx;
}

constexpr Range kTwoBlocks{10, 10 + 65536 + 100};
constexpr Range kTop{0xFFFFFFF0u, 0xFFFFFFFFu};
constexpr Range kHundred{1000, 1100};

TEST(Indices, encode_gives_documented_bytes_and_decode_reads_them) {
  const struct {
    const char* what;
    const IndexCodec& codec;
    Range range;
    std::vector<Index> idx;
    Numbers bytes;
  } rows[] = {
      {"coo32: offsets into the range", index_coo32(), {1000, 2000}, {1001, 1515}, {1, 0, 0, 0, 3, 2, 0, 0}},
      {"coo32: the last index", index_coo32(), {5, 14}, {13}, {8, 0, 0, 0}},
      {"u16_blocks: counts, then offsets",
       index_u16_blocks(),
       kTwoBlocks,
       {10, 10 + 65535, 10 + 65536 + 99},
       {2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 255, 255, 99, 0}},
      {"u16_blocks: the last index", index_u16_blocks(), kTop, {0xFFFFFFFEu}, {1, 0, 0, 0, 14, 0}},
      {"bitmap: a bit per index", index_bitmap(), {3, 14}, {3, 5, 10, 13}, {0x85, 0x04}},
      {"bitmap: the last index", index_bitmap(), {3, 14}, {13}, {0, 0x04}},
      {"all: nothing", index_all(), {7, 10}, {7, 8, 9}, {}},
      {"bit_packed: a width of 3, then the gaps less one",
       index_bit_packed(),
       {100, 200},
       {103, 104, 112, 114},
       {3, 0xC3, 0x03}},
      {"bit_packed: the last index", index_bit_packed(), {0, 8}, {7}, {3, 7}},
      {"bit_packed: a byte per block of neighbours", index_bit_packed(), {0, 5000}, count_up(1000), {0, 0}},
      {"bit_packed: a width for each block",
       index_bit_packed(),
       {0, 5000},
       with_a_last(count_up(512), 512 + 255),
       {0, 8, 255}},
      {"elias_fano: 4 low bits each, then high parts 0, 0, 2, 6",
       index_elias_fano(),
       kHundred,
       {1003, 1010, 1042, 1099},
       {0xA3, 0x3A, 0x13, 0x02}},
      {"elias_fano: a quarter has low and high bits", index_elias_fano(), {0, 8}, {1, 6}, {0x09, 0x05}},
      {"elias_fano: more than a quarter is a bitmap", index_elias_fano(), {0, 8}, {1, 4, 6}, {0x52}},
      {"elias_fano: all of the range is a bitmap", index_elias_fano(), {0, 4}, {0, 1, 2, 3}, {0x0F}},
      {"elias_fano: one of 8", index_elias_fano(), {0, 8}, {7}, {0x07, 0x01}},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(payload_of(row.codec, row.range, row.idx), row.bytes) << row.what;
    EXPECT_EQ(indices_of(row.codec, row.range, row.idx.size(), row.bytes), row.idx) << row.what;
  }
}

TEST(Indices, decode_of_bytes_that_no_encoder_writes_throws) {
  const struct {
    const char* what;
    const IndexCodec& codec;
    Range range;
    std::size_t count;
    Numbers bytes;
  } rows[] = {
      {"coo32: repeated", index_coo32(), {0, 9}, 2, {3, 0, 0, 0, 3, 0, 0, 0}},
      {"coo32: falling", index_coo32(), {0, 9}, 2, {3, 0, 0, 0, 2, 0, 0, 0}},
      {"coo32: behind the range", index_coo32(), {5, 14}, 1, {9, 0, 0, 0}},
      {"coo32: wrapped around", index_coo32(), {5, 14}, 1, {255, 255, 255, 255}},
      {"u16_blocks: counts of none", index_u16_blocks(), kTwoBlocks, 1, {0, 0, 0, 0, 0, 0, 0, 0, 5, 0}},
      {"u16_blocks: counts of two", index_u16_blocks(), kTwoBlocks, 1, {1, 0, 0, 0, 1, 0, 0, 0, 5, 0}},
      {"u16_blocks: a huge count", index_u16_blocks(), kTwoBlocks, 1, {255, 255, 255, 255, 0, 0, 0, 0, 5, 0}},
      {"u16_blocks: behind the range", index_u16_blocks(), kTwoBlocks, 1, {0, 0, 0, 0, 1, 0, 0, 0, 100, 0}},
      {"u16_blocks: wrapped around", index_u16_blocks(), kTop, 1, {1, 0, 0, 0, 18, 0}},
      {"u16_blocks: repeated", index_u16_blocks(), {0, 100}, 2, {2, 0, 0, 0, 5, 0, 5, 0}},
      {"bitmap: three ones", index_bitmap(), {3, 14}, 4, {0x85, 0x00}},
      {"bitmap: five ones", index_bitmap(), {3, 14}, 4, {0x87, 0x04}},
      {"bitmap: behind the range", index_bitmap(), {3, 14}, 1, {0, 0x08}},
      {"bit_packed: behind the range", index_bit_packed(), {0, 7}, 1, {3, 7}},
      {"bit_packed: beyond 2^32", index_bit_packed(), {5, 12}, 2, {32, 0, 0, 0, 0, 255, 255, 255, 255}},
      {"bit_packed: width 33", index_bit_packed(), {0, 900}, 1, {33, 0, 0, 0, 0, 0}},
      {"bit_packed: width 255", index_bit_packed(), {0, 900}, 1, {255, 0, 0, 0, 0, 0}},
      {"bit_packed: cut short", index_bit_packed(), {0, 900}, 3, {8, 1, 2}},
      {"bit_packed: a block missing", index_bit_packed(), {0, 900}, 513, {0}},
      {"bit_packed: bytes left over", index_bit_packed(), {0, 900}, 1, {3, 7, 0}},
      {"bit_packed: padding set", index_bit_packed(), {0, 900}, 1, {3, 0x0F}},
      {"elias_fano: three ones", index_elias_fano(), kHundred, 4, {0xA3, 0x3A, 0x03, 0x02}},
      {"elias_fano: five ones", index_elias_fano(), kHundred, 4, {0xA3, 0x3A, 0x33, 0x02}},
      {"elias_fano: five ones in order", index_elias_fano(), kHundred, 4, {0xA3, 0x3A, 0x13, 0x03}},
      {"elias_fano: equal", index_elias_fano(), kHundred, 4, {0x33, 0x3A, 0x13, 0x02}},
      {"elias_fano: falling low bits", index_elias_fano(), kHundred, 4, {0x3A, 0x3A, 0x13, 0x02}},
      {"elias_fano: behind the range", index_elias_fano(), kHundred, 4, {0xA3, 0x4A, 0x13, 0x02}},
      {"elias_fano: padding of the high bits set", index_elias_fano(), kHundred, 4, {0xA3, 0x3A, 0x03, 0x06}},
      {"elias_fano: padding of the low bits set", index_elias_fano(), {0, 8}, 1, {0x0F, 0x01}},
  };
  for (const auto& row : rows)
    EXPECT_THROW(indices_of(row.codec, row.range, row.count, row.bytes), CommError) << row.what;
  // Sums beyond 2^32 of a full block must not come back into the range from below.
  for (const unsigned width : {22u, 23u, 24u, 32u}) {
    Numbers payload(1 + 64 * width, 0xFF);
    payload[0] = width;
    for (const Range range : {Range{0, 1u << 30}, Range{0xFFFF0000u, 0xFFFFFFFFu}})
      EXPECT_THROW(indices_of(index_bit_packed(), range, 512, payload), CommError) << width;
  }
}

TEST(IndexU16Blocks, encode_full_block_counts_65536) {
  const std::vector<Index> idx = count_up(65536);
  const Numbers payload = payload_of(index_u16_blocks(), {0, 65536}, idx);
  EXPECT_EQ((Numbers{payload.begin(), payload.begin() + 4}), (Numbers{0, 0, 1, 0}));
  EXPECT_EQ(indices_of(index_u16_blocks(), {0, 65536}, 65536, payload), idx);
}

// 512 fields of 8 bits in 16 lanes: field i is number i / 16 of lane i % 16, and a lane is every 16th word.
TEST(Indices, encode_full_block_of_packed_fields_interleaves_16_lanes) {
  std::vector<Index> gaps(512);  // less one: i % 256
  std::vector<Index> lows(512);  // low bits: i * 37 % 256
  Index next = 0;
  for (Index i = 0; i < 512; ++i) {
    gaps[i] = next + i % 256;
    next = gaps[i] + 1;
    lows[i] = 256 * i + (i * 37) % 256;
  }
  const Numbers packed = payload_of(index_bit_packed(), {0, 100000}, gaps);
  const Numbers fano = payload_of(index_elias_fano(), {0, 512 * 256}, lows);
  ASSERT_EQ(packed.size(), 1 + 512u);
  EXPECT_EQ(packed[0], 8u);
  for (std::size_t i = 0; i < 512; ++i) {
    const std::size_t row = i / 16;
    const std::size_t at = row / 4 * 64 + i % 16 * 4 + row % 4;
    EXPECT_EQ(packed[1 + at], i % 256) << i;
    EXPECT_EQ(fano[at], (i * 37) % 256) << i;
  }
  EXPECT_EQ(fano[512], 0x55u);  // every second bit: the high parts count up
}

TEST(Indices, encode_at_one_percent_takes_the_bits_that_are_documented) {
  const struct {
    const IndexCodec& codec;
    double least, most;
  } rows[] = {{index_coo32(), 32, 32},
              {index_u16_blocks(), 16, 16.06},
              {index_bitmap(), 98, 102},
              {index_bit_packed(), 8, 10.1},
              {index_elias_fano(), 8, 8.7}};
  Random random(9);
  const Range range{0, 1 << 21};
  const SparseVector entries = random_entries(range, 0.01, random);
  for (const auto& row : rows) {
    Bytes bytes;
    row.codec.encode(entries.idx, range, bytes);
    const double bits = 8.0 * static_cast<double>(bytes.size()) / static_cast<double>(entries.size());
    EXPECT_GE(bits, row.least);
    EXPECT_LE(bits, row.most);
  }
}

}  // namespace
}  // namespace oktopk::testing::indices_test
