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
      0x73, 0x82, 0x02, 0x53,                          // checksum
      0x08,                                            // 4 entries, sparse
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
  EXPECT_EQ(bytes.size(), 5u);
  const Frame frame = open_frame(bytes, {kPlain, {5, 5}, 3});
  EXPECT_EQ(frame.count, 0u);
  EXPECT_EQ(frame.bytes(), 5u);
  EXPECT_EQ(frame.range, (Range{5, 5}));
}

// The checksum covers what does not travel: another tag, range or coding does not open.
TEST(Frame, open_with_another_spec_throws) {
  for (const SparseVector& v : {SparseVector{}, entries({{1003, 1.5f}, {1010, -2.0f}})}) {
    const FrameSpec spec{kPlain, {1000, 1100}, 7};
    Bytes bytes;
    encode_frame(spec, v, bytes);
    EXPECT_EQ(open_frame(bytes, spec).count, v.size());
    const auto refused = [&](const FrameSpec& other) {
      const std::string message = message_of<CommError>([&] { open_frame(bytes, other); });
      EXPECT_FALSE(message.empty());
    };
    for (unsigned bit = 0; bit < 32; ++bit) refused({kPlain, {1000, 1100}, 7 ^ (1u << bit)});
    refused({kPlain, {1000, 1101}, 7});
    refused({kPlain, {999, 1100}, 7});
    refused({kPlain, {1001, 1101}, 7});
    for (const Codec codec : every_codec())
      if (codec != kPlain) refused({codec, {1000, 1100}, 7});
  }
}

TEST(Frame, open_of_another_step_says_what_was_expected) {
  const Bytes bytes = encoded(kPlain, {1000, 1100}, entries({{1003, 1.5f}}), 7);
  const std::string message = message_of<CommError>([&] { open_frame(bytes, {kPlain, {1000, 1100}, 8}); });
  for (const char* part :
       {"another step or with other options, or a damaged one", "tag 8", "[1000, 1100)", "coo32+fp32"})
    EXPECT_NE(message.find(part), std::string::npos) << message;
  EXPECT_THROW(open_frame(bytes, {kPlain, {9, 3}, 7}), UsageError);
}

TEST(Frame, encode_bad_arguments_throws_and_appends_nothing) {
  Bytes out;
  const auto encode = [&out](Codec codec, Range range, const SparseVector& v) {
    encode_frame({codec, range, 0}, v, out);
  };
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_THROW(encode(kPlain, {9, 3}, {}), UsageError);
  EXPECT_THROW(encode(kPlain, {0, 9}, entries({{9, 1}})), UsageError);
  EXPECT_THROW(encode(kPlain, {4, 9}, entries({{3, 1}})), UsageError);
  EXPECT_THROW(encode(kPlain, {0, 9}, entries({{3, inf}})), UsageError);
  EXPECT_THROW(encode(kPlain, {0, 9}, entries({{3, std::nanf("")}})), UsageError);
  EXPECT_THROW(encode(parse_codec("all"), {0, 2}, entries({{1, 1}})), UsageError);
  EXPECT_THROW(encode({static_cast<IndexCoding>(6), ValueCoding::fp32}, {0, 2}, {}), UsageError);
  EXPECT_THROW(encode({IndexCoding::coo32, static_cast<ValueCoding>(4)}, {0, 2}, {}), UsageError);
  EXPECT_THROW(encode(kPlain, {0, 1}, entries({{0, 1}, {1, 1}})), UsageError);
  EXPECT_THROW(encode_dense_frame({kPlain, {0, 9}, 0}, std::vector<float>(8), out), UsageError);
  EXPECT_THROW(encode_dense_frame({kPlain, {0, 1}, 0}, std::vector<float>{inf}, out), UsageError);
  EXPECT_TRUE(out.empty());
}

TEST(Frame, encode_dense_keeps_zeros_and_errors) {
  const std::vector<float> dense{0.0f, 1.0f + 0x1p-10f, -3.0f, 0.0f};
  for (const char* name : {"fp32", "bf16", "log8", "log4", "elias_fano+log8"}) {
    Bytes bytes;
    SparseVector error;
    const FrameSpec spec{parse_codec(name), {10, 14}, 1};
    encode_dense_frame(spec, dense, bytes, &error);
    EXPECT_EQ(bytes.size(), dense_frame_bytes(spec.codec, 4));
    EXPECT_EQ(bytes.size(), expected_dense_frame_bytes(spec.codec, 4));
    const Frame frame = open_frame(bytes, spec);
    EXPECT_EQ(frame.codec.index, IndexCoding::all);
    EXPECT_EQ(frame.count, 4u);
    const SparseVector out = decoded(bytes, spec);
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

TEST(Frame, open_foreign_bytes_says_what_is_wrong) {
  const auto expect_says = [](Codec codec, const auto& damage, const std::string& part) {
    const FrameSpec spec{codec, {0, 9}};
    Bytes bytes = encoded(codec, spec.range, entries({{3, 1}}));
    damage(bytes);
    reseal(bytes, spec);
    const std::string message = message_of<CommError>([&] { open_frame(bytes, spec); });
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  const auto with_head = [](unsigned head) {
    return [head](Bytes& bytes) { bytes[4] = static_cast<std::byte>(head); };
  };
  expect_says(kPlain, with_head(20), "10 entries in a range of 9");
  expect_says(kPlain, with_head(4), "truncated, 16 payload bytes announced, 8 there");
  expect_says(kPlain, with_head(1), "truncated, 36 payload bytes announced, 8 there");
  expect_says(kPlain, with_head(3), "unknown number 3");
  expect_says(kPlain, with_head(0x80), "192 entries in a range of 9");  // goes on in byte 5
  expect_says(
      kPlain, [](Bytes& bytes) { bytes.resize(4); }, "truncated, it ends after 4 bytes");
  const Codec packed = parse_codec("bit_packed");
  expect_says(packed, with_head(20), "10 entries in a range of 9");
  const auto with_size = [](unsigned size) {
    return [size](Bytes& bytes) {
      bytes[5] = static_cast<std::byte>(size);
      bytes.resize(100, std::byte{0});
    };
  };
  expect_says(packed, with_size(0), "4 payload bytes for 1 entries of bit_packed+fp32");
  expect_says(packed, with_size(90), "94 payload bytes for 1 entries");
  expect_says(packed, with_size(91), "truncated, 95 payload bytes announced, 94 there");
}

TEST(Frame, decode_of_a_forged_frame_throws) {
  const Bytes bytes = encoded(kPlain, {0, 9}, entries({{3, 1}}));
  Frame frame = open_frame(bytes, {kPlain, {0, 9}});
  frame.count = 8;
  SparseVector out;
  EXPECT_THROW(decode_frame(frame, out), CommError);
  EXPECT_TRUE(out.empty());
}

}  // namespace
}  // namespace oktopk::testing::frame_test
