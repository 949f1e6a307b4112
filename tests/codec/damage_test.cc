// SPDX-License-Identifier: Apache-2.0
// Frames that were cut, flipped, forged or made up: all of them end in a CommError, or decode to
// canonical finite entries inside the range; nothing else may happen. fuzz/frame.cc is the same
// with a fuzzer that watches coverage.
#include <gtest/gtest.h>

#include <cmath>

#include "oktopk/base/error.h"
#include "oktopk/base/simd.h"
#include "oktopk/base/varint.h"
#include "tests/codec/samples.h"

namespace oktopk::testing::damage_test {
namespace {

class FrameDamage : public ::testing::TestWithParam<Codec> {
 protected:
  Codec codec() const { return GetParam(); }

  FrameSpec small() const { return {codec(), {900, 1237}, 77}; }
  FrameSpec large() const { return {codec(), {900, 7000}, 77}; }

  Bytes small_frame(double density, Random& random) const { return frame_over(small(), density, random); }

  // With full blocks of every coding, and what is left.
  Bytes large_frame(Random& random) const { return frame_over(large(), 0.25, random); }

 private:
  static Bytes frame_over(const FrameSpec& spec, double density, Random& random) {
    const double share = spec.codec.index == IndexCoding::all ? 1.1 : density;
    return encoded(spec.codec, spec.range, random_entries(spec.range, share, random), spec.tag);
  }
};

// True if the bytes decode at the level in use; checks the result. Lets nothing but CommError pass
// as a refusal.
bool survives_here(std::span<const std::byte> bytes, const FrameSpec& spec, SparseVector& out) {
  out.clear();
  const Range range = spec.range;
  try {
    const Frame frame = open_frame(bytes, spec);
    EXPECT_LE(frame.count, 2 * frame.payload.size());
    decode_frame(frame, out);
  } catch (const CommError& error) {
    EXPECT_TRUE(out.empty());
    EXPECT_GT(std::string(error.what()).size(), 10u);
    return false;
  }
  EXPECT_TRUE(is_canonical(out));
  EXPECT_TRUE(out.empty() || (out.idx.front() >= range.begin && out.idx.back() < range.end));
  for (const float v : out.val) EXPECT_TRUE(std::isfinite(v));
  return true;
}

// The same at every level of vector instructions: all refuse, or all decode the same.
bool survives(std::span<const std::byte> bytes, const FrameSpec& spec, SparseVector& out) {
  bool accepted = false;
  SparseVector first;
  for (const SimdLevel level : simd_levels()) {
    const SimdLimit limit(level);
    const bool here = survives_here(bytes, spec, out);
    if (level == SimdLevel::scalar) {
      accepted = here;
      first = out;
    }
    EXPECT_EQ(here, accepted) << to_string(level);
    EXPECT_TRUE(std::ranges::equal(out.idx, first.idx)) << to_string(level);
    EXPECT_TRUE(std::ranges::equal(out.val, first.val)) << to_string(level);
  }
  return accepted;
}

TEST_P(FrameDamage, open_truncated_at_any_byte_throws) {
  Random random(1);
  const Bytes bytes = small_frame(0.1, random);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    // A buffer of exactly that size lets the sanitizer see reads beyond it.
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<long>(size));
    EXPECT_THROW(open_frame(cut, small()), CommError) << size;
  }
}

TEST_P(FrameDamage, open_with_any_single_bit_flipped_throws) {
  Random random(2);
  Bytes bytes = small_frame(0.1, random);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_THROW(open_frame(bytes, small()), CommError) << bit;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  EXPECT_NO_THROW(open_frame(bytes, small()));
}

TEST_P(FrameDamage, open_claim_of_four_billion_entries_throws) {
  const FrameSpec spec{codec(), {0, 0xFFFFFFFFu}, 77};
  Bytes bytes(kFrameChecksumBytes);
  append_varint(2 * std::uint64_t{0xFFFFFFFFu}, bytes);
  bytes.resize(bytes.size() + 500, std::byte{0});
  reseal(bytes, spec);
  EXPECT_THROW(open_frame(bytes, spec), CommError);
}

// All sizes follow from the count, but for bit_packed's.
TEST_P(FrameDamage, decode_wrong_count_throws_or_stays_canonical) {
  Random random(4);
  SparseVector out;
  for (const int change : {-2, 2, 10}) {
    Bytes bytes = small_frame(0.1, random);  // about 34 entries: one byte of count
    bytes[4] = static_cast<std::byte>(std::to_integer<int>(bytes[4]) + change);
    reseal(bytes, small());
    const bool decodes = survives(bytes, small(), out);
    EXPECT_FALSE(decodes && codec().index == IndexCoding::all);
    EXPECT_FALSE(decodes && codec().index == IndexCoding::bitmap);
  }
}

TEST_P(FrameDamage, decode_wrong_size_of_indices_throws) {
  if (codec().index != IndexCoding::bit_packed) return;
  Random random(4);
  SparseVector out;
  for (const int change : {-1, 1, 5}) {
    Bytes bytes = small_frame(0.1, random);
    bytes[5] = static_cast<std::byte>(std::to_integer<int>(bytes[5]) + change);
    bytes.resize(bytes.size() + 5, std::byte{0});
    reseal(bytes, small());
    EXPECT_FALSE(survives(bytes, small(), out)) << change;
  }
}

// Changes a few bytes of head or payload, or the size.
void mutate(Bytes& bytes, Random& random) {
  const std::size_t changes = 1 + random() % 4;
  for (std::size_t i = 0; i < changes; ++i) {
    const std::size_t at = random() % bytes.size();
    switch (random() % 4) {
      case 0:
        bytes[at] ^= std::byte{1} << (random() % 8);
        break;
      case 1:
        bytes[at] = static_cast<std::byte>(random());
        break;
      case 2:
        if (at + 4 <= bytes.size()) put(bytes, at, static_cast<std::uint32_t>(random() % 512));
        break;
      default:
        bytes[at] = static_cast<std::byte>(bytes[random() % bytes.size()]);
    }
  }
  if (random() % 8 == 0) bytes.resize(std::max<std::size_t>(5, random() % 700), std::byte{0});
}

// How many of `rounds` frames that `damage` made of `good` decode.
template <class Damage>
int survivors(const Bytes& good, const FrameSpec& spec, int rounds, Damage damage) {
  SparseVector out;
  int decodable = 0;
  for (int round = 0; round < rounds; ++round) {
    Bytes bytes = good;
    damage(bytes);
    reseal(bytes, spec);
    decodable += survives(bytes, spec, out) ? 1 : 0;
  }
  return decodable;
}

TEST_P(FrameDamage, decode_mutated_and_resealed_throws_or_stays_canonical) {
  Random random(5);
  const auto damage = [&](Bytes& bytes) { mutate(bytes, random); };
  int decodable = 0;
  for (const double density : {0.003, 0.05, 0.5, 1.1})
    decodable += survivors(small_frame(density, random), small(), 1000, damage);
  decodable += survivors(large_frame(random), large(), 400, damage);
  // Both ways must really have been walked.
  EXPECT_GT(decodable, 50);
  EXPECT_LT(decodable, 4350);
}

// Any payload; and numbers that the encoder never writes at the start of every part: widths, counts, scales.
TEST_P(FrameDamage, decode_random_bytes_throws_or_stays_canonical) {
  Random random(6);
  const Bytes few = small_frame(0.05, random);
  const std::size_t head = open_frame(few, small()).head;
  survivors(few, small(), 3000, [&](Bytes& bytes) {
    for (std::size_t i = head; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(random() & random());
  });
  const Bytes many = large_frame(random);
  const std::size_t start = open_frame(many, large()).head;
  survivors(many, large(), 600, [&](Bytes& bytes) {
    const std::size_t first = start + (random() % 2 == 0 ? 0 : random() % 5000);
    for (std::size_t i = first; i < std::min(first + 1 + random() % 9, bytes.size()); ++i)
      bytes[i] = static_cast<std::byte>(random() % 40);
  });
}

INSTANTIATE_TEST_SUITE_P(Codecs, FrameDamage, ::testing::ValuesIn(every_codec()),
                         [](const auto& codec) { return test_name(codec.param); });

TEST(FrameNoise, open_random_bytes_throws) {
  Random random(8);
  SparseVector out;
  for (int round = 0; round < 20000; ++round) {
    Bytes bytes(random() % 200);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    for (const Codec codec : {Codec{}, parse_codec("bit_packed+log4"), parse_codec("all")})
      EXPECT_FALSE(survives(bytes, {codec, {0, 50}, 77}, out));
  }
}

}  // namespace
}  // namespace oktopk::testing::damage_test
