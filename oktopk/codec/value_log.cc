// SPDX-License-Identifier: Apache-2.0
// log8 and log4: sign and a 7-bit (3-bit) level per value, blocks of 256 values with their own
// logarithmic scale. Layout of a block: u16 lo (bf16; bit 15: level 0 is zero), u16 hi (bf16), then
// one code per value, log8 a byte (bit 7 the sign), log4 a nibble (bit 3 the sign, the first value
// in the low half). 8.125 (4.125) bits per value. Selected values all exceed a threshold, so a
// scale that starts there wastes no level on the empty interval around zero.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "oktopk/base/error.h"
#include "oktopk/codec/bf16.h"
#include "oktopk/codec/log_levels.h"
#include "oktopk/codec/value_codec.h"

namespace oktopk {
namespace {

constexpr std::size_t kBlock = 256;
constexpr std::size_t kScaleBytes = 4;
constexpr std::uint16_t kZeroFlag = 0x8000;
constexpr std::uint16_t kLeastNormal = 0x0080;  // bf16

std::uint32_t magnitude_bits(float v) { return std::bit_cast<std::uint32_t>(v) & 0x7FFFFFFFu; }

struct Extremes {
  float least;  // magnitudes
  float most;
};

// Of the magnitudes from `floor` (bits of a float) on; the least is the largest float if there are
// none.
Extremes extremes(std::span<const float> val, std::uint32_t floor) {
  std::uint32_t least = 0x7F7FFFFFu;
  std::uint32_t most = 0;
  for (const float v : val) {
    const std::uint32_t bits = magnitude_bits(v);
    least = std::min(least, bits >= floor ? bits : least);
    most = std::max(most, bits);
  }
  return {std::bit_cast<float>(least), std::bit_cast<float>(most)};
}

template <unsigned LevelBits>
class Log final : public ValueCodec {
 public:
  std::size_t bytes(std::size_t count) const override {
    return kScaleBytes * ((count + kBlock - 1) / kBlock) + code_bytes(count);
  }
  std::size_t cut_bytes() const override { return kScaleBytes + (LevelBits == 3 ? 1 : 0); }

  void encode(std::span<const float> val, std::span<std::byte> out) const override {
    while (!val.empty()) {
      const auto block = val.first(std::min(kBlock, val.size()));
      encode_block(block, out.data());
      val = val.subspan(block.size());
      out = out.subspan(bytes(block.size()));
    }
  }

  void decode(std::span<const std::byte> payload, std::span<float> out) const override {
    while (!out.empty()) {
      const auto block = out.first(std::min(kBlock, out.size()));
      decode_block(payload.data(), block);
      payload = payload.subspan(bytes(block.size()));
      out = out.subspan(block.size());
    }
  }

 private:
  static constexpr unsigned kLevels = 1u << LevelBits;
  static constexpr const char* kName = LevelBits == 7 ? "log8" : "log4";
  // Neighbouring levels at most 1.5 octaves apart: a value is then within a factor of two of the
  // nearest level, and the difference is exact.
  static constexpr unsigned kMaxOctaves = 3 * (kLevels - 2) / 2;
  // Below this many octaves no value is small enough to be worth dropping.
  static constexpr unsigned kWideOctaves = 3;

  using Codes = std::array<std::uint8_t, kBlock>;

  static std::size_t code_bytes(std::size_t count) {
    return LevelBits == 7 ? count : (count + 1) / 2;
  }

  // From hi down over `octaves` at most; magnitudes below that share level 0, zero.
  static LogScale cut_scale(std::span<const float> block, std::uint16_t hi, unsigned octaves) {
    const unsigned drop = octaves << 7;  // of the exponent field
    const unsigned floor = hi >= drop + kLeastNormal ? hi - drop : kLeastNormal;
    const float least = extremes(block, floor << 16).least;
    return {std::min(to_bf16(least), hi), hi, true};
  }

  static unsigned octaves_of(LogScale scale) {
    return static_cast<unsigned>((scale.hi - scale.lo) + 127) >> 7;
  }

  static LogScale full_scale(std::span<const float> block) {
    const Extremes magnitude = extremes(block, 0);
    if (magnitude.most == 0) return {0, 0, true};
    const std::uint16_t hi = std::max(to_bf16(magnitude.most), kLeastNormal);
    const std::uint16_t lo = to_bf16(magnitude.least);
    const LogScale scale{lo, hi, false};
    const bool reaches = lo >= kLeastNormal && octaves_of(scale) <= kMaxOctaves;
    return reaches ? scale : cut_scale(block, hi, kMaxOctaves);
  }

  using Levels = std::array<float, kLevels>;

  // The nearest level of every magnitude: the number of borders below it. border[l] is half-way
  // between the levels l and l + 1.
  static Levels quantise(std::span<const float> block, LogScale scale, Codes& codes) {
    Levels levels;
    fill_levels(scale, levels);
    Levels border;
    for (unsigned l = 0; l + 1 < kLevels; ++l) border[l] = levels[l] * 0.5f + levels[l + 1] * 0.5f;
    border[kLevels - 1] = HUGE_VALF;
    const LevelGuess guess(scale);
    for (std::size_t i = 0; i < block.size(); ++i) {
      const std::uint32_t bits = magnitude_bits(block[i]);
      const unsigned sign = std::bit_cast<std::uint32_t>(block[i]) >> 31;
      const unsigned level = LevelBits == 3 ? count_below(border, bits) : walk(border, bits, guess);
      codes[i] = static_cast<std::uint8_t>((sign << LevelBits) | level);
    }
    return levels;
  }

  static unsigned count_below(const Levels& border, std::uint32_t bits) {
    unsigned level = 0;
    for (unsigned l = 0; l + 1 < kLevels; ++l) level += std::bit_cast<float>(bits) > border[l];
    return level;
  }

  // A level near the right one, from the logarithm.
  class LevelGuess {
   public:
    explicit LevelGuess(LogScale scale) : first_(scale.has_zero ? 1.5f : 0.5f) {
      if (scale.lo == scale.hi) return;
      low_ = static_cast<std::int32_t>(fixed_log2(std::uint32_t{scale.lo} << 16));
      const auto high = static_cast<std::int32_t>(fixed_log2(std::uint32_t{scale.hi} << 16));
      const float steps = static_cast<float>(kLevels - 1) - (scale.has_zero ? 1.0f : 0.0f);
      per_log_ = steps / static_cast<float>(high - low_);
    }
    unsigned operator()(std::uint32_t bits) const {
      const std::int32_t above = static_cast<std::int32_t>(fixed_log2(bits)) - low_;
      const float level = first_ + static_cast<float>(std::max(above, 0)) * per_log_;
      return static_cast<unsigned>(std::min(level, static_cast<float>(kLevels - 1)));
    }

   private:
    float first_;
    std::int32_t low_ = 0;
    float per_log_ = 0;
  };

  static unsigned walk(const Levels& border, std::uint32_t bits, const LevelGuess& guess) {
    const float magnitude = std::bit_cast<float>(bits);
    unsigned level = guess(bits);
    while (magnitude > border[level]) ++level;
    while (level > 0 && magnitude <= border[level - 1]) --level;
    return level;
  }

  static double squared_error(std::span<const float> block, const Levels& levels,
                              const Codes& codes) {
    double sum = 0;
    for (std::size_t i = 0; i < block.size(); ++i) {
      const double error = std::fabs(block[i]) - levels[codes[i] % kLevels];
      sum += error * error;
    }
    return sum;
  }

  // A few values near zero (sums that cancelled) would stretch the scale over many octaves at the
  // expense of all others. So halve the range, sending what falls below it to zero, for as long as
  // that makes the squared error of the block smaller.
  static LogScale best_codes(std::span<const float> block, Codes& codes) {
    LogScale scale = full_scale(block);
    const Levels levels = quantise(block, scale, codes);
    if (octaves_of(scale) <= kWideOctaves) return scale;
    double least = squared_error(block, levels, codes);
    while (octaves_of(scale) > kWideOctaves) {
      const LogScale narrower = cut_scale(block, scale.hi, octaves_of(scale) / 2);
      Codes candidate;
      const Levels fewer = quantise(block, narrower, candidate);
      const double error = squared_error(block, fewer, candidate);
      if (!(error < least)) break;
      scale = narrower;
      least = error;
      codes = candidate;
    }
    return scale;
  }

  static void encode_block(std::span<const float> block, std::byte* out) {
    Codes codes;
    const LogScale scale = best_codes(block, codes);
    const auto lo = static_cast<std::uint16_t>(scale.lo | (scale.has_zero ? kZeroFlag : 0));
    std::memcpy(out, &lo, sizeof lo);
    std::memcpy(out + 2, &scale.hi, sizeof scale.hi);
    out += kScaleBytes;
    if constexpr (LevelBits == 7) {
      std::memcpy(out, codes.data(), block.size());
    } else {
      if (block.size() % 2 != 0) codes[block.size()] = 0;
      for (std::size_t i = 0; i < block.size(); i += 2) {
        out[i / 2] = static_cast<std::byte>(codes[i] | (codes[i + 1] << 4));
      }
    }
  }

  static LogScale read_scale(const std::byte* from) {
    std::uint16_t lo;
    std::uint16_t hi;
    std::memcpy(&lo, from, sizeof lo);
    std::memcpy(&hi, from + 2, sizeof hi);
    const LogScale scale{static_cast<std::uint16_t>(lo & ~kZeroFlag), hi, (lo & kZeroFlag) != 0};
    if (!is_valid(scale)) {
      fail<CommError>(kName, ": a block's magnitudes from bf16 ", scale.lo, " to ", hi,
                      " are no scale");
    }
    return scale;
  }

  static void decode_block(const std::byte* from, std::span<float> out) {
    std::array<float, 2 * kLevels> signed_levels;
    fill_levels(read_scale(from), std::span(signed_levels).template first<kLevels>());
    for (unsigned l = 0; l < kLevels; ++l) signed_levels[kLevels + l] = -signed_levels[l];
    from += kScaleBytes;
    if constexpr (LevelBits == 7) {
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = signed_levels[std::to_integer<unsigned>(from[i])];
      }
    } else {
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = signed_levels[(std::to_integer<unsigned>(from[i / 2]) >> (4 * (i % 2))) & 15u];
      }
      if (out.size() % 2 != 0 && (std::to_integer<unsigned>(from[out.size() / 2]) >> 4) != 0) {
        fail<CommError>("log4: padding bits are set");
      }
    }
  }
};

}  // namespace

const ValueCodec& value_log8() {
  static constexpr Log<7> codec;
  return codec;
}

const ValueCodec& value_log4() {
  static constexpr Log<3> codec;
  return codec;
}

}  // namespace oktopk
