// SPDX-License-Identifier: Apache-2.0
#include "oktopk/codec/codec.h"

#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "tests/codec/samples.h"
#include "tests/support/message.h"

namespace oktopk::testing::codec_test {
namespace {

TEST(Codec, parse_name_of_every_codec_returns_it) {
  EXPECT_EQ(every_codec().size(), 24u);
  for (const Codec codec : every_codec()) EXPECT_EQ(parse_codec(to_string(codec)), codec);
  for (const auto table : {index_codings(), value_codings()})
    for (const CodingInfo& info : table) EXPECT_FALSE(info.name.empty() || info.summary.empty());
}

TEST(Codec, parse_half_fills_in_the_other) {
  EXPECT_EQ(parse_codec("elias_fano"), (Codec{IndexCoding::elias_fano, ValueCoding::fp32}));
  EXPECT_EQ(parse_codec("log8"), (Codec{IndexCoding::coo32, ValueCoding::log8}));
}

TEST(Codec, parse_nonsense_throws_naming_it_and_what_exists) {
  const auto error_of = [](const char* text) { return message_of([&] { parse_codec(text); }); };
  const std::string indices = "coo32, u16_blocks, bit_packed, elias_fano, bitmap, all";
  const std::string values = "fp32, bf16, log8, log4";
  for (const char* text : {"", "elias", "COO32", "coo32 "})
    EXPECT_EQ(error_of(text), "unknown codec '" + std::string(text) + "'; there are: " + indices + ", " + values);
  for (const char* half : {"", "bf16", "coo32 "})
    EXPECT_EQ(error_of((std::string(half) + "+fp32").c_str()),
              "unknown index coding '" + std::string(half) + "'; there are: " + indices);
  for (const char* half : {"", "coo32", "fp32+fp32"})
    EXPECT_EQ(error_of(("coo32+" + std::string(half)).c_str()),
              "unknown value coding '" + std::string(half) + "'; there are: " + values);
}

TEST(Codec, find_coding_takes_names_of_its_kind_only) {
  EXPECT_EQ(find_index_coding("bitmap"), IndexCoding::bitmap);
  EXPECT_EQ(find_value_coding("log4"), ValueCoding::log4);
  EXPECT_THROW(find_index_coding("log4"), UsageError);
  EXPECT_THROW(find_value_coding("bitmap"), UsageError);
}

TEST(Codec, unknown_coding_throws) {
  EXPECT_THROW(max_payload_bytes({static_cast<IndexCoding>(9), ValueCoding::fp32}, 1, 1), UsageError);
  EXPECT_THROW(max_payload_bytes({IndexCoding::coo32, static_cast<ValueCoding>(9)}, 1, 1), UsageError);
}

// Entries in one of several shapes, few or many.
SparseVector any_entries(Range range, Random& random) {
  switch (random() % 4) {
    case 0:
      return clustered_entries(range, 1 + static_cast<Index>(random() % 600), static_cast<Index>(random() % 8000),
                               random);
    case 1:
      return clustered_entries(range, 512, static_cast<Index>(range.width() / (1 + random() % 9)), random);
    case 2:
      return random_entries(range, 1.0 / static_cast<double>(1 + random() % 2000), random);
    default:
      return random_entries(range, uniform(random) * 1.2, random);
  }
}

std::vector<Index> random_cuts(Range range, std::size_t frames, Random& random) {
  std::vector<Index> cuts{range.begin, range.end};
  for (std::size_t i = 1; i < frames; ++i) {
    cuts.push_back(range.begin + static_cast<Index>(random() % (range.width() + 1)));
  }
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

TEST(MaxBytes, any_entries_in_any_cut_stay_below) {
  Random random(11);
  for (int round = 0; round < 150; ++round) {
    const Range range{17, 17 + static_cast<Index>(1 + random() % (1u << (1 + random() % 17)))};
    const SparseVector entries = any_entries(range, random);
    const std::size_t frames = 1 + random() % 20;
    const std::vector<Index> cuts = random_cuts(range, frames, random);
    for (const Codec codec : every_codec()) {
      if (codec.index == IndexCoding::all) continue;
      Bytes bytes;
      std::size_t heads = 0;
      for (std::size_t i = 0; i < frames; ++i) {
        const Range piece{cuts[i], cuts[i + 1]};
        encode_frame({codec, piece}, part(entries, piece), bytes);
        heads += frame_head_bytes(codec, part(entries, piece).size());
      }
      // More entries or frames announced than there are is allowed.
      for (const std::size_t more : {0, 1, 100}) {
        ASSERT_LE(bytes.size() - heads, max_payload_bytes(codec, entries.size() + more, range.width(), frames))
            << to_string(codec) << ", " << entries.size() << " in " << range.width();
        ASSERT_LE(bytes.size(), max_frame_bytes(codec, entries.size(), range.width(), frames + more));
      }
    }
  }
}

TEST(MaxBytes, dense_frames_stay_below) {
  Random random(12);
  for (int round = 0; round < 100; ++round) {
    const Range range{0, static_cast<Index>(1 + random() % 3000)};
    const SparseVector entries = random_entries(range, 1.1, random);
    const std::size_t frames = 1 + random() % 9;
    const std::vector<Index> cuts = random_cuts(range, frames, random);
    for (const ValueCoding value : {ValueCoding::fp32, ValueCoding::bf16, ValueCoding::log4}) {
      const Codec codec{IndexCoding::all, value};
      Bytes dense;
      Bytes sparse;
      for (std::size_t i = 0; i < frames; ++i) {
        const FrameSpec spec{codec, {cuts[i], cuts[i + 1]}};
        const CooView piece = part(entries, spec.range);
        encode_dense_frame(spec, piece.val, dense);
        encode_frame(spec, piece, sparse);
      }
      const std::size_t most = max_frame_bytes(codec, 0, range.width(), frames);
      EXPECT_LE(dense.size(), most);
      EXPECT_LE(sparse.size(), most);
    }
  }
}

TEST(MaxBytes, exact_for_one_frame_of_fixed_size_codings) {
  Random random(13);
  const Range range{0, 100000};
  const SparseVector entries = random_entries(range, 0.02, random);
  for (const char* name : {"coo32", "u16_blocks+bf16", "bitmap+log8", "coo32+log4"}) {
    const Codec codec = parse_codec(name);
    EXPECT_EQ(encoded(codec, range, entries).size(), max_frame_bytes(codec, entries.size(), range.width()));
  }
}

TEST(MaxBytes, nothing_to_send_takes_nothing) {
  for (const Codec codec : every_codec()) {
    EXPECT_EQ(max_payload_bytes(codec, 0, 0), 0u);
    EXPECT_EQ(max_payload_bytes(codec, 5, 0), 0u);
    EXPECT_EQ(expected_payload_bytes(codec, 0, 0), 0);
  }
}

TEST(MaxBytes, largest_range_does_not_overflow) {
  const std::size_t top = 0xFFFFFFFFu;
  for (const Codec codec : every_codec()) {
    const std::size_t most = max_payload_bytes(codec, top, top, 1000);
    EXPECT_GE(most, top / 2) << to_string(codec);
    EXPECT_LE(most, 9 * top) << to_string(codec);
  }
}

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
}  // namespace oktopk::testing::codec_test
