// SPDX-License-Identifier: Apache-2.0
// Sizes of frames and of their heads.
#include <gtest/gtest.h>

#include "tests/codec/samples.h"

namespace oktopk::testing::frame_sizes_test {
namespace {

constexpr Codec kPlain{};
constexpr Codec kPacked{IndexCoding::bit_packed, ValueCoding::fp32};

TEST(FrameSizes, bytes_are_a_checksum_and_the_count) {
  EXPECT_EQ(frame_head_bytes(kPlain, 0), 4 + 1u);
  EXPECT_EQ(frame_head_bytes(kPlain, 63), 4 + 1u);
  EXPECT_EQ(frame_head_bytes(kPlain, 64), 4 + 2u);
  EXPECT_EQ(frame_head_bytes(kPlain, 8192), 4 + 3u);
  EXPECT_EQ(frame_head_bytes(kPlain, 0xFFFFFFFF), 4 + 5u);
}

TEST(FrameSizes, size_field_is_there_only_where_the_size_is_open) {
  EXPECT_EQ(frame_head_bytes(kPacked, 0), 4 + 1u);
  EXPECT_EQ(frame_head_bytes(kPacked, 51), 4 + 1 + 1u);
  EXPECT_EQ(frame_head_bytes(kPacked, 52), 4 + 1 + 2u);
  EXPECT_EQ(frame_head_bytes(kPacked, 0xFFFFFFFF), 4 + 5 + 5u);
  for (const Codec codec : every_codec())
    EXPECT_EQ(frame_head_bytes(codec, 100) == 6, codec.index != IndexCoding::bit_packed);
}

TEST(FrameSizes, max_frame_bytes_counts_heads) {
  EXPECT_EQ(max_frame_bytes(kPlain, 10, 100, 3), 3 * 5 + 10 * 8u);
  EXPECT_EQ(max_frame_bytes(kPlain, 0, 100, 3), 3 * 5u);
  EXPECT_EQ(max_frame_bytes(kPlain, 100, 100, 3), 3 * 6 + 100 * 8u);
  EXPECT_EQ(max_frame_bytes(kPlain, 1000, 10, 3), 3 * 5 + 10 * 8u);
}

TEST(FrameSizes, dense_codec_has_no_logarithmic_values) {
  EXPECT_EQ(dense_codec(kPacked), (Codec{IndexCoding::all, ValueCoding::fp32}));
  for (const ValueCoding value : {ValueCoding::bf16, ValueCoding::log8, ValueCoding::log4})
    EXPECT_EQ(dense_codec({IndexCoding::coo32, value}), (Codec{IndexCoding::all, ValueCoding::bf16}));
  EXPECT_EQ(dense_frame_bytes(kPlain, 100), 5 + 400u);
  EXPECT_EQ(dense_frame_bytes(parse_codec("log4"), 100), 5 + 200u);
}

}  // namespace
}  // namespace oktopk::testing::frame_sizes_test
