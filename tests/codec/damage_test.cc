// SPDX-License-Identifier: Apache-2.0
// Frames that were cut, flipped, forged or made up: all of them end in a CommError, or decode to
// canonical finite entries inside the range; nothing else may happen. fuzz_frame.cc is the same
// with a fuzzer that watches coverage.
#include <gtest/gtest.h>

#include <cmath>

#include "oktopk/base/error.h"
#include "oktopk/base/simd.h"
#include "tests/codec/samples.h"

namespace oktopk::testing::damage_test {
namespace {

class FrameDamage : public ::testing::TestWithParam<Codec> {
 protected:
  Codec codec() const { return GetParam(); }

  Bytes small_frame(double density, Random& random) const {
    return frame_over({900, 1237}, density, random);
  }

  // With full blocks of every coding, and what is left.
  Bytes large_frame(Random& random) const { return frame_over({900, 7000}, 0.25, random); }

 private:
  Bytes frame_over(Range range, double density, Random& random) const {
    const double share = codec().index == IndexCoding::all ? 1.1 : density;
    return encoded(codec(), range, random_entries(range, share, random), 77);
  }
};

// True if the bytes decode at the level in use; checks the result. Lets nothing but CommError pass
// as a refusal.
bool survives_here(std::span<const std::byte> bytes, SparseVector& out) {
  out.clear();
  Range range;
  try {
    const Frame frame = open_frame(bytes);
    range = frame.range;
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
bool survives(std::span<const std::byte> bytes, SparseVector& out) {
  bool accepted = false;
  SparseVector first;
  for (const SimdLevel level : simd_levels()) {
    const SimdLimit limit(level);
    const bool here = survives_here(bytes, out);
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
    EXPECT_THROW(open_frame(cut), CommError) << size;
  }
}

TEST_P(FrameDamage, open_with_any_single_bit_flipped_throws) {
  Random random(2);
  Bytes bytes = small_frame(0.1, random);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_THROW(open_frame(bytes), CommError) << bit;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  EXPECT_NO_THROW(open_frame(bytes));
}

TEST_P(FrameDamage, open_claim_of_four_billion_entries_throws) {
  Random random(3);
  Bytes bytes = small_frame(0.1, random);
  put(bytes, 4, 0xFFFFFFFFu);
  put(bytes, 8, 0u);
  put(bytes, 12, 0xFFFFFFFFu);
  reseal(bytes);
  EXPECT_THROW(open_frame(bytes), CommError);
}

TEST_P(FrameDamage, open_wrong_payload_size_throws) {
  Random random(4);
  // With one payload byte more or less no coding but bit_packed has a size that fits.
  const bool has_slack = codec().index == IndexCoding::bit_packed;
  for (const long change : {-1, 1, 5}) {
    Bytes bytes = small_frame(0.2, random);
    const std::size_t size = bytes.size() - kFrameHeaderBytes + static_cast<std::size_t>(change);
    bytes.resize(kFrameHeaderBytes + size, std::byte{0});
    put(bytes, 16, std::uint64_t{size});
    reseal(bytes);
    SparseVector out;
    EXPECT_FALSE(survives(bytes, out)) << change;
    if (!has_slack) {
      EXPECT_THROW(open_frame(bytes), CommError) << change;
    }
  }
}

// Changes a few bytes of header or payload, or the size.
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
  if (random() % 8 == 0) bytes.resize(std::max<std::size_t>(32, random() % 700), std::byte{0});
  if (random() % 4 != 0) put(bytes, 16, std::uint64_t{bytes.size() - kFrameHeaderBytes});
}

// How many of `rounds` mutations of `good` decode.
int survivors(const Bytes& good, int rounds, Random& random) {
  SparseVector out;
  int decodable = 0;
  for (int round = 0; round < rounds; ++round) {
    Bytes bytes = good;
    mutate(bytes, random);
    reseal(bytes);
    decodable += survives(bytes, out) ? 1 : 0;
  }
  return decodable;
}

TEST_P(FrameDamage, decode_mutated_and_resealed_throws_or_stays_canonical) {
  Random random(5);
  int decodable = 0;
  for (const double density : {0.003, 0.05, 0.5, 1.1}) {
    decodable += survivors(small_frame(density, random), 1000, random);
  }
  decodable += survivors(large_frame(random), 400, random);
  // Both ways must really have been walked.
  EXPECT_GT(decodable, 50);
  EXPECT_LT(decodable, 4350);
}

TEST_P(FrameDamage, decode_random_payload_throws_or_stays_canonical) {
  Random random(6);
  SparseVector out;
  Bytes bytes = small_frame(0.05, random);
  for (int round = 0; round < 3000; ++round) {
    for (std::size_t i = kFrameHeaderBytes; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>(random() & random());
    }
    reseal(bytes);
    survives(bytes, out);
  }
}

// Numbers that the encoder never writes at the start of every part: widths, counts, scales.
TEST_P(FrameDamage, decode_large_with_random_bytes_throws_or_stays_canonical) {
  Random random(9);
  SparseVector out;
  const Bytes good = large_frame(random);
  for (int round = 0; round < 600; ++round) {
    Bytes bytes = good;
    const std::size_t first = kFrameHeaderBytes + (round % 2 == 0 ? 0 : random() % 5000);
    for (std::size_t i = first; i < std::min(first + 1 + random() % 9, bytes.size()); ++i) {
      bytes[i] = static_cast<std::byte>(random() % 40);
    }
    reseal(bytes);
    survives(bytes, out);
  }
}

TEST_P(FrameDamage, decode_add_refuses_what_decode_refuses) {
  Random random(7);
  const Bytes good = large_frame(random);
  SparseVector entries;
  for (int round = 0; round < 200; ++round) {
    Bytes bytes = good;
    for (int i = 0; i < 3; ++i) {
      bytes[32 + random() % (bytes.size() - 32)] = static_cast<std::byte>(random());
    }
    reseal(bytes);
    std::vector<float> sums(7000 - 900, 0.0f);
    std::vector<float> want = sums;
    if (!survives(bytes, entries)) {
      EXPECT_THROW(decode_frame_add(open_frame(bytes), sums), CommError);
      continue;
    }
    for (std::size_t i = 0; i < entries.size(); ++i) want[entries.idx[i] - 900] += entries.val[i];
    decode_frame_add(open_frame(bytes), sums);
    EXPECT_EQ(sums, want);
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, FrameDamage, ::testing::ValuesIn(every_codec()),
                         [](const auto& codec) { return test_name(codec.param); });

TEST(FrameNoise, open_random_bytes_throws) {
  Random random(8);
  SparseVector out;
  for (int round = 0; round < 20000; ++round) {
    Bytes bytes(random() % 200);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    EXPECT_FALSE(survives(bytes, out));
  }
}

}  // namespace
}  // namespace oktopk::testing::damage_test
