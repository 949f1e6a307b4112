// SPDX-License-Identifier: Apache-2.0
// The contract of every pair of index and value coding. The pairs come from the tables of codec.h: a
// new coding is tested as soon as it has a name.
#include <gtest/gtest.h>

#include <bit>

#include "oktopk/base/simd.h"
#include "tests/codec/samples.h"

namespace oktopk::testing::conformance_test {
namespace {

class CodecConformance : public ::testing::TestWithParam<Codec> {
 protected:
  Codec codec() const { return GetParam(); }
};

SparseVector without_zeros(CooView v) {
  SparseVector kept;
  for (std::size_t i = 0; i < v.size(); ++i) {
    if (v.val[i] != 0) kept.push_back(v.idx[i], v.val[i]);
  }
  return kept;
}

void expect_same_bits(CooView got, CooView want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got.idx[i], want.idx[i]) << i;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(got.val[i]), std::bit_cast<std::uint32_t>(want.val[i])) << i;
  }
}

// The indices that arrive are those that were sent. Lossless values are, too; of others the sender knows the exact
// error. Entries that were in the outputs before stay there.
TEST_P(CodecConformance, recode_any_sample_returns_every_index_and_the_exact_error) {
  const bool is_all = codec().index == IndexCoding::all;
  for (const Sample& sample : samples_for(codec())) {
    SCOPED_TRACE(sample.name);
    const SparseVector& sent = sample.entries;
    const FrameSpec spec{codec(), sample.range};
    Bytes bytes;
    SparseVector error, out;
    error.push_back(5, 5.0f);
    out.push_back(1, 2.0f);
    encode_frame(spec, sent, bytes, &error);
    EXPECT_LE(bytes.size(), max_frame_bytes(codec(), sent.size(), sample.range.width()));
    decode_frame(open_frame(bytes, spec), out);
    EXPECT_EQ(error.idx[0], 5u);
    EXPECT_EQ(out.idx[0], 1u);
    EXPECT_EQ(out.val[0], 2.0f);
    const CooView got = out.view().slice(1, out.size() - 1);
    if (!is_all) {
      ASSERT_TRUE(std::ranges::equal(got.idx, sent.idx));
    }
    if (codec().lossless()) {
      expect_same_bits(got, is_all ? without_zeros(sent) : sent);
      EXPECT_EQ(error.size(), 1u);
    }
    EXPECT_TRUE(is_canonical(error.view().slice(1, error.size() - 1)));
    std::size_t at = 1;
    std::size_t next = 0;
    for (std::size_t i = 0; i < sent.size(); ++i) {
      const Index index = sent.idx[i];
      const bool has_arrived = next < got.size() && got.idx[next] == index;
      const double arrived = has_arrived ? double{got.val[next++]} : 0.0;
      const bool differs = at < error.size() && error.idx[at] == index;
      const double kept = differs ? double{error.val[at++]} : 0.0;
      ASSERT_EQ(arrived + kept, double{sent.val[i]}) << index;
      if (differs) {
        ASSERT_NE(kept, 0);
      }
    }
    EXPECT_EQ(at, error.size());
  }
}

TEST_P(CodecConformance, encode_uniform_positions_meets_the_expected_size) {
  Random random(3);
  const Range range{0, 1 << 20};
  for (const double density : {0.001, 0.003, 0.01, 0.03, 0.1, 0.3}) {
    const double share = codec().index == IndexCoding::all ? 1.1 : density;
    const SparseVector entries = random_entries(range, share, random);
    const auto count = static_cast<double>(entries.size());
    const auto bytes = static_cast<double>(encoded(codec(), range, entries).size());
    const double expected = expected_payload_bytes(codec(), count, 1 << 20);
    const auto head = static_cast<double>(frame_head_bytes(codec(), entries.size()));
    EXPECT_NEAR(bytes - head, expected, 0.03 * expected) << density;
    EXPECT_DOUBLE_EQ(expected_frame_bytes(codec(), count, 1 << 20), head + expected);
  }
}

TEST_P(CodecConformance, open_concatenated_frames_finds_each) {
  Bytes stream;
  const std::vector<Sample> samples = samples_for(codec());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const FrameSpec spec{codec(), samples[i].range, static_cast<std::uint32_t>(i)};
    encode_frame(spec, samples[i].entries, stream);
  }
  std::span<const std::byte> rest = stream;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const FrameSpec spec{codec(), samples[i].range, static_cast<std::uint32_t>(i)};
    const Frame frame = open_frame(rest, spec);
    EXPECT_EQ(frame.codec, codec());
    EXPECT_EQ(frame.head, frame_head_bytes(codec(), frame.count));
    EXPECT_EQ(frame.range, samples[i].range);
    EXPECT_EQ(frame.count, samples[i].entries.size());
    rest = rest.subspan(frame.bytes());
  }
  EXPECT_TRUE(rest.empty());
}

// At every level of vector instructions the same bytes, and from them the same entries.
void expect_same_at_every_level(Codec codec, Range range, CooView entries) {
  Bytes want;
  SparseVector want_back;
  for (const SimdLevel level : simd_levels()) {
    const SimdLimit limit(level);
    const Bytes bytes = encoded(codec, range, entries);
    const SparseVector back = decoded(bytes, {codec, range});
    if (level == SimdLevel::scalar) {
      want = bytes;
      want_back = back;
    }
    ASSERT_EQ(bytes, want) << to_string(level);
    ASSERT_NO_FATAL_FAILURE(expect_same_bits(back, want_back)) << to_string(level);
  }
}

TEST_P(CodecConformance, recode_any_sample_is_the_same_at_every_level) {
  for (const Sample& sample : samples_for(codec())) {
    SCOPED_TRACE(sample.name);
    ASSERT_NO_FATAL_FAILURE(expect_same_at_every_level(codec(), sample.range, sample.entries));
  }
}

// Around the blocks of 512 and 256 there are many tails, and each level has its own way with them.
TEST_P(CodecConformance, recode_any_count_is_the_same_at_every_level) {
  Random random(21);
  const bool all = codec().index == IndexCoding::all;
  const Range range{77, 77 + 40000};
  SparseVector entries = random_entries(range, all ? 1.1 : 0.03, random);
  for (std::size_t count = 0; count <= 1100; ++count) {
    SCOPED_TRACE(count);
    const Range used{77, all ? static_cast<Index>(77 + count) : range.end};
    const CooView first = entries.view().slice(0, count);
    ASSERT_NO_FATAL_FAILURE(expect_same_at_every_level(codec(), used, first));
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, CodecConformance, ::testing::ValuesIn(every_codec()),
                         [](const auto& codec) { return test_name(codec.param); });

}  // namespace
}  // namespace oktopk::testing::conformance_test
