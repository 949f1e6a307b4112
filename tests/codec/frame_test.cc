// SPDX-License-Identifier: Apache-2.0
#include "oktopk/codec/frame.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "oktopk/base/error.h"
#include "tests/codec/samples.h"
#include "tests/support/message.h"

namespace oktopk::testing::frame_test {
namespace {

constexpr Codec kPlain{IndexCoding::coo32, ValueCoding::fp32};

SparseVector entries(std::initializer_list<std::pair<Index, float>> items) {
  SparseVector v;
  for (const auto& [i, x] : items) v.push_back(i, x);
  return v;
}

// The example of docs/wire_format.md; the bytes there and here are the same.
TEST(Frame, encode_documented_example_gives_documented_bytes) {
  Bytes bytes;
  encode_frame({parse_codec("elias_fano+bf16"), {1000, 1100}, 7},
               entries({{1003, 1.5f}, {1010, -2.0f}, {1042, 0.25f}, {1099, 3.0f}}), bytes);
  const std::vector<unsigned> want{
      0x4F, 0x4B, 0x02, 0x13,                          // magic "OK", version 2, codings 3 and 1
      0x04, 0x00, 0x00, 0x00,                          // 4 entries
      0xE8, 0x03, 0x00, 0x00, 0x4C, 0x04, 0x00, 0x00,  // range [1000, 1100)
      0x0C, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,  // 12 payload bytes
      0x07, 0x00, 0x00, 0x00,                          // tag 7
      0x6F, 0x45, 0x08, 0x8B,                          // checksum
      0xA3, 0x3A,                                      // low bits 3, 10, 10, 3
      0x13, 0x02,                                      // high parts 0, 0, 2, 6
      0xC0, 0x3F, 0x00, 0xC0, 0x80, 0x3E, 0x40, 0x40,  // 1.5, -2, 0.25, 3
  };
  std::vector<unsigned> got;
  for (const std::byte b : bytes) got.push_back(std::to_integer<unsigned>(b));
  EXPECT_EQ(got, want);
}

TEST(Frame, open_empty_range_has_no_payload) {
  const Bytes bytes = encoded(kPlain, {5, 5}, {}, 3);
  EXPECT_EQ(bytes.size(), kFrameHeaderBytes);
  const Frame frame = open_frame(bytes);
  EXPECT_EQ(frame.count, 0u);
  EXPECT_EQ(frame.tag, 3u);
  EXPECT_EQ(frame.range, (Range{5, 5}));
}

TEST(Frame, encode_bad_arguments_throws_and_appends_nothing) {
  Bytes out;
  const auto encode = [&out](Codec codec, Range range, const SparseVector& v) {
    encode_frame({codec, range, 0}, v, out);
  };
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_THROW(encode(kPlain, {9, 3}, {}), UsageError);
  EXPECT_THROW(encode(kPlain, {0, 9}, entries({{3, 1}, {3, 1}})), UsageError);
  EXPECT_THROW(encode(kPlain, {0, 9}, entries({{3, 1}, {2, 1}})), UsageError);
  EXPECT_THROW(encode(kPlain, {0, 9}, entries({{9, 1}})), UsageError);
  EXPECT_THROW(encode(kPlain, {4, 9}, entries({{3, 1}})), UsageError);
  EXPECT_THROW(encode(kPlain, {0, 9}, entries({{3, inf}})), UsageError);
  EXPECT_THROW(encode(kPlain, {0, 9}, entries({{3, std::nanf("")}})), UsageError);
  EXPECT_THROW(encode(parse_codec("all"), {0, 2}, entries({{1, 1}})), UsageError);
  EXPECT_THROW(encode({static_cast<IndexCoding>(6), ValueCoding::fp32}, {0, 2}, {}), UsageError);
  EXPECT_THROW(encode({IndexCoding::coo32, static_cast<ValueCoding>(4)}, {0, 2}, {}), UsageError);
  const std::vector<Index> lonely{1};
  EXPECT_THROW(encode_frame({kPlain, {0, 9}, 0}, {lonely, {}}, out), UsageError);
  EXPECT_THROW(encode_dense_frame({kPlain, {0, 9}, 0}, std::vector<float>(8), out), UsageError);
  EXPECT_THROW(encode_dense_frame({kPlain, {0, 1}, 0}, std::vector<float>{inf}, out), UsageError);
  EXPECT_TRUE(out.empty());
}

TEST(Frame, encode_dense_keeps_zeros_and_errors) {
  const std::vector<float> dense{0.0f, 1.0f + 0x1p-10f, -3.0f, 0.0f};
  for (const char* name : {"fp32", "bf16", "log8", "log4", "elias_fano+log8"}) {
    Bytes bytes;
    SparseVector error;
    encode_dense_frame({parse_codec(name), {10, 14}, 1}, dense, bytes, &error);
    const Frame frame = open_frame(bytes);
    EXPECT_EQ(frame.codec.index, IndexCoding::all);
    EXPECT_EQ(frame.count, 4u);
    const SparseVector out = decoded(bytes);
    ASSERT_EQ(out.size(), 2u);
    EXPECT_EQ(out.idx[0], 11u);
    EXPECT_EQ(out.val[1], -3.0f);
    if (parse_codec(name).lossless()) {
      EXPECT_EQ(out.val[0], dense[1]);
      EXPECT_TRUE(error.empty());
    } else {
      EXPECT_EQ(frame.codec.value, ValueCoding::bf16);
      EXPECT_EQ(out.val[0], 1.0f);
      ASSERT_EQ(error.size(), 1u);
      EXPECT_EQ(error.idx[0], 11u);
      EXPECT_EQ(error.val[0], 0x1p-10f);
    }
  }
}

TEST(Frame, decode_add_to_wrong_size_throws) {
  const Bytes bytes = encoded(kPlain, {0, 9}, entries({{3, 1}}));
  std::vector<float> sums(8);
  EXPECT_THROW(decode_frame_add(open_frame(bytes), sums), UsageError);
}

TEST(Frame, open_foreign_bytes_says_what_is_wrong) {
  const Bytes good = encoded(kPlain, {0, 9}, entries({{3, 1}}));
  const auto message_with = [&good](std::size_t offset, auto value) {
    Bytes bytes = good;
    put(bytes, offset, value);
    reseal(bytes);
    return message_of<CommError>([&bytes] { open_frame(bytes); });
  };
  const auto expect_says = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect_says(message_with(0, std::uint16_t{0x4B4E}), "magic");
  expect_says(message_with(2, std::uint8_t{1}), "version 1");
  expect_says(message_with(3, std::uint8_t{6}), "unknown coding, index 6");
  expect_says(message_with(3, std::uint8_t{0x40}), "value 4");
  expect_says(message_with(8, std::uint32_t{10}), "[10, 9)");
  expect_says(message_with(4, std::uint32_t{10}), "10 entries in a range of 9");
  expect_says(message_with(4, std::uint32_t{2}), "8 payload bytes for 2 entries of coo32+fp32");
  expect_says(message_with(4, std::uint32_t{0}), "no entries, but 8 payload bytes");
  expect_says(message_with(3, std::uint8_t{5}), "'all' with 1 entries for a range of 9");
  expect_says(message_with(16, std::uint64_t{1} << 60), "truncated");
}

TEST(Frame, decode_of_a_forged_frame_throws) {
  const Bytes bytes = encoded(kPlain, {0, 9}, entries({{3, 1}}));
  Frame frame = open_frame(bytes);
  frame.count = 8;
  SparseVector out;
  EXPECT_THROW(decode_frame(frame, out), CommError);
  EXPECT_TRUE(out.empty());
}

TEST(Frame, max_bytes_counts_headers) {
  EXPECT_EQ(max_frame_bytes(kPlain, 10, 100, 3), 3 * 32 + 10 * 8u);
  EXPECT_EQ(max_frame_bytes(kPlain, 0, 100, 3), 3 * 32u);
}

}  // namespace
}  // namespace oktopk::testing::frame_test
