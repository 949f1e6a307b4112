// SPDX-License-Identifier: Apache-2.0
// The kernels of codings: every SIMD level against the scalar one, at all widths, all tails, any alignment, and not a
// byte outside. The kernels of entries and elements are tested by tests/sparse and tests/device, at every level.
#include "oktopk/cpu/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "oktopk/base/simd.h"
#include "oktopk/cpu/bits.h"
#include "tests/codec/samples.h"

namespace oktopk::testing::kernels_test {
namespace {

class CodingLevels : public ::testing::TestWithParam<SimdLevel> {
 protected:
  const CodingKernels& kernels() const { return oktopk::kernels(GetParam()).codings; }
  const CodingKernels& scalar() const { return kScalarCodings; }

  // At most `width` bits each, and now and then all of them.
  std::vector<std::uint32_t> fields(std::size_t count, unsigned width) {
    std::vector<std::uint32_t> values(count);
    for (auto& v : values) v = static_cast<std::uint32_t>(random_() & low_mask(width));
    values[count / 2] = static_cast<std::uint32_t>(low_mask(width));
    return values;
  }

  std::vector<Index> increasing_indices(std::size_t count, std::uint64_t most) {
    std::vector<Index> idx(count);
    Index next = 5;
    for (Index& i : idx) {
      i = next + static_cast<Index>(random_() % most);
      next = i + 1;
    }
    return idx;
  }

  Random random_{1};
};

// The definition of docs/wire_format.md, bit by bit.
std::uint32_t field_at(const std::vector<std::byte>& bytes, unsigned width, std::size_t i) {
  std::uint32_t field = 0;
  for (unsigned b = 0; b < width; ++b) {
    const std::size_t bit = i / 16 * width + b;  // of lane i % 16
    const std::size_t byte = 4 * (bit / 32 * 16 + i % 16) + bit % 32 / 8;
    field |= (std::to_integer<std::uint32_t>(bytes[byte]) >> (bit % 8) & 1u) << b;
  }
  return field;
}

TEST_P(CodingLevels, pack_any_width_puts_fields_where_the_format_says) {
  for (unsigned width = 0; width <= kMaxFieldBits; ++width) {
    const auto values = fields(kFieldBlock, width);
    std::vector<std::byte> bytes(64 * width);
    kernels().pack(values.data(), width, bytes.data());
    for (std::size_t i = 0; i < kFieldBlock; ++i) {
      ASSERT_EQ(field_at(bytes, width, i), values[i]) << width << ' ' << i;
    }
  }
}

TEST_P(CodingLevels, unpack_any_width_at_any_alignment_returns_the_fields) {
  for (unsigned width = 0; width <= kMaxFieldBits; ++width) {
    const auto values = fields(kFieldBlock, width);
    for (std::size_t offset = 0; offset < 5; ++offset) {
      // Exactly as long as it has to be, for the sanitizer to see reads beyond it.
      std::vector<std::byte> bytes(offset + 64 * width);
      kernels().pack(values.data(), width, bytes.data() + offset);
      std::vector<std::uint32_t> back(kFieldBlock);
      kernels().unpack(bytes.data() + offset, width, back.data());
      ASSERT_EQ(back, values) << width;
      std::vector<Index> sums(kFieldBlock);
      kernels().unpack_gaps(bytes.data() + offset, width, 1000, sums.data());
      Index next = 1000;
      for (std::size_t i = 0; i < kFieldBlock; ++i) {
        next += values[i];
        ASSERT_EQ(sums[i], next++) << width << ' ' << i;
      }
    }
  }
}

TEST_P(CodingLevels, gaps_of_any_indices_are_their_differences_less_one) {
  for (const std::uint64_t most : {1u, 3u, 1000u, 8000000u})
    for (const std::size_t count : {std::size_t{1}, std::size_t{7}, std::size_t{100}, kFieldBlock}) {
      const auto idx = increasing_indices(count, most);
      std::vector<Index> got(count);
      const Index any = kernels().gaps(idx.data(), count, 5, got.data());
      Index next = 5;
      Index all = 0;
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(got[i], idx[i] - next);
        all |= got[i];
        next = idx[i] + 1;
      }
      EXPECT_EQ(any, all);
    }
}

TEST_P(CodingLevels, list_ones_of_any_density_finds_every_one) {
  for (int thin = 0; thin < 9; ++thin) {
    std::vector<std::byte> bytes(8 * 40);
    for (std::byte& b : bytes) {
      b = static_cast<std::byte>(random_());
      for (int i = 1; i < thin; ++i) b &= static_cast<std::byte>(random_());
      if (thin == 0) b = std::byte{0xFF};
    }
    for (std::size_t room = 1; room < 300; room += 7) {
      std::vector<Index> want(room + kOnesSlack);
      std::vector<Index> got(room + kOnesSlack);
      const OnesListed a = scalar().list_ones(bytes, 9, want.data(), room);
      const OnesListed b = kernels().list_ones(bytes, 9, got.data(), room);
      ASSERT_EQ(a.ones, b.ones);
      ASSERT_EQ(a.words, b.words);
      want.resize(a.ones);
      got.resize(b.ones);
      ASSERT_EQ(got, want);
    }
  }
}

TEST_P(CodingLevels, set_high_bits_and_join_are_inverse) {
  for (const std::uint64_t most : {1u, 100u, 5000u}) {
    for (std::size_t count = 1; count < 60; ++count) {
      const auto idx = increasing_indices(count, most);
      for (const unsigned width : {0u, 1u, 6u, 12u}) {
        const std::size_t bits = ((idx.back() - 3) >> width) + count;
        std::vector<std::byte> got(bytes_for_bits(bits) + 15);
        std::vector<std::byte> want = got;
        kernels().set_high_bits({3, width}, idx.data(), count, got.data());
        scalar().set_high_bits({3, width}, idx.data(), count, want.data());
        got.resize(bytes_for_bits(bits));
        want.resize(bytes_for_bits(bits));
        ASSERT_EQ(got, want) << count << ' ' << width << ' ' << most;
        got.resize((got.size() + 7) / 8 * 8);
        std::vector<Index> ones(count + kOnesSlack);
        kernels().list_ones(got, 0, ones.data(), count);
        std::vector<Index> low = idx;
        for (Index& i : low) i = (i - 3) & static_cast<Index>(low_mask(width));
        kernels().join({ones.data(), 0, width, 3}, low.data(), count);
        ASSERT_EQ(low, idx);
      }
    }
  }
}

std::vector<float> any_floats(std::size_t count, Random& random) {
  std::vector<float> val(count);
  for (float& v : val) {
    do {
      v = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    } while (!std::isfinite(v));
  }
  return val;
}

TEST(KernelLevels, level_in_use_is_the_one_of_the_process) {
  for (const SimdLevel level : simd_levels()) {
    const SimdLimit limit(level);
    EXPECT_EQ(&kernels(), &kernels(level));
  }
}

TEST_P(CodingLevels, bf16_of_any_floats_equals_the_scalar_level) {
  for (std::size_t count = 0; count < 100; ++count) {
    const auto val = any_floats(count, random_);
    std::vector<std::byte> got(2 * count);
    std::vector<std::byte> want(2 * count);
    kernels().to_bf16(val.data(), count, got.data());
    scalar().to_bf16(val.data(), count, want.data());
    ASSERT_EQ(got, want);
    std::vector<float> back(count);
    std::vector<float> back_want(count);
    EXPECT_TRUE(kernels().from_bf16(got.data(), count, back.data()));
    scalar().from_bf16(got.data(), count, back_want.data());
    ASSERT_EQ(back, back_want);
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<std::byte> wrong = got;
      wrong[2 * i] = std::byte{0x80};
      wrong[2 * i + 1] = std::byte{0xFF};
      EXPECT_FALSE(kernels().from_bf16(wrong.data(), count, back.data())) << i;
    }
  }
}

TEST_P(CodingLevels, split_bf16_of_any_floats_keeps_exactly_what_bf16_lacks) {
  for (std::size_t count = 0; count < 100; ++count) {
    auto val = any_floats(count, random_);
    if (count > 2) val[count / 2] = std::numeric_limits<float>::max();  // would round to infinity
    if (count > 1) val[0] = -std::numeric_limits<float>::denorm_min();
    std::vector<std::byte> got(2 * count);
    std::vector<std::byte> want(2 * count);
    std::vector<float> rest = val;
    EXPECT_TRUE(kernels().split_bf16(rest.data(), count, got.data()));
    scalar().to_bf16(val.data(), count, want.data());
    ASSERT_EQ(got, want);
    std::vector<float> sum(count);
    EXPECT_TRUE(scalar().from_bf16(got.data(), count, sum.data()));
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(double{sum[i]} + double{rest[i]}, double{val[i]}) << i;
    EXPECT_TRUE(kernels().add_bf16(got.data(), count, rest.data()));
    ASSERT_EQ(rest, val);
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<float> wrong = val;
      wrong[i] = i % 2 == 0 ? std::numeric_limits<float>::infinity() : -std::numeric_limits<float>::quiet_NaN();
      EXPECT_FALSE(kernels().split_bf16(wrong.data(), count, got.data())) << i;
      std::vector<std::byte> infinite = want;
      infinite[2 * i] = std::byte{0x80};
      infinite[2 * i + 1] = std::byte{0xFF};
      EXPECT_FALSE(kernels().add_bf16(infinite.data(), count, sum.data())) << i;
    }
  }
}

TEST_P(CodingLevels, log_kernels_of_any_floats_equal_the_scalar_level) {
  LogQuantiser q{.low_exponent = 120,
                 .low_fraction = 0.3f,
                 .per_octave = 11.7f,
                 .rounding = 0.49f,
                 .steps = 126,
                 .first = 1,
                 .zero = 0x3C000000};
  for (std::size_t count = 1; count < 100; ++count) {
    auto val = any_floats(count, random_);
    for (std::size_t i = 0; i < count; i += 2) val[i] = normal_value(random_);
    for (const std::int32_t floor : {0, 0x3F000000, 0x7F7FFFFF}) {
      const Extremes got = kernels().extremes(val.data(), count, floor);
      const Extremes want = scalar().extremes(val.data(), count, floor);
      EXPECT_EQ(got.least, want.least);
      EXPECT_EQ(got.most, want.most);
    }
    std::vector<std::uint8_t> got(count);
    std::vector<std::uint8_t> want(count);
    kernels().log_codes(q, val.data(), count, got.data());
    scalar().log_codes(q, val.data(), count, want.data());
    ASSERT_EQ(got, want);
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, CodingLevels, ::testing::ValuesIn(simd_levels().begin(), simd_levels().end()),
                         [](const auto& level) { return std::string(to_string(level.param)); });

}  // namespace
}  // namespace oktopk::testing::kernels_test
