// SPDX-License-Identifier: Apache-2.0
// The value codings:
//   fp32        IEEE floats as they are, lossless.
//   bf16        the upper 16 bits of a float, rounded to nearest even; relative error at most 2^-9. A finite value that
//               would round to infinity becomes the largest finite bf16.
//   log8, log4  sign and a 7-bit (3-bit) level per value, blocks of 256 values with their own logarithmic scale. Layout
//               of a block: u16 lo (bf16; bit 15: level 0 is zero), u16 hi (bf16), then one code per value, log8 a byte
//               (bit 7 the sign), log4 a nibble (bit 3 the sign, the first value in the low half). 8.125 (4.125) bits
//               per value. Selected values all exceed a threshold: a scale that starts there wastes no level.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "oktopk/base/error.h"
#include "oktopk/codec/coding.h"
#include "oktopk/codec/log_levels.h"
#include "oktopk/cpu/kernels.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

class Fp32Values final : public ValueCodec {
 public:
  std::size_t bytes(std::size_t count) const override { return sizeof(float) * count; }

  void encode(std::span<const float> val, std::span<std::byte> out) const override {
    std::memcpy(out.data(), val.data(), out.size());
  }

  void decode(std::span<const std::byte> payload, std::span<float> out) const override {
    std::memcpy(out.data(), payload.data(), payload.size());
    if (first_nonfinite(out) != out.size()) fail<CommError>("fp32: a value among ", out.size(), " is not finite");
  }
};

class Bf16Values final : public ValueCodec {
 public:
  std::size_t bytes(std::size_t count) const override { return sizeof(Bf16) * count; }

  void encode(std::span<const float> val, std::span<std::byte> out) const override {
    kernels().codings.to_bf16(val.data(), val.size(), out.data());
  }

  void decode(std::span<const std::byte> payload, std::span<float> out) const override {
    if (!kernels().codings.from_bf16(payload.data(), out.size(), out.data()))
      fail<CommError>("bf16: a value among ", out.size(), " is not finite");
  }
};

constexpr std::size_t kScaledBlock = 256;
constexpr std::size_t kScaleBytes = 4;
constexpr std::uint16_t kZeroFlag = 0x8000;
constexpr std::uint16_t kLeastNormal = 0x0080;  // bf16
constexpr std::int32_t kLargest = 0x7F7FFFFF;   // bits of the largest float

template <unsigned LevelBits>
class Log final : public ValueCodec {
 public:
  std::size_t bytes(std::size_t count) const override {
    return kScaleBytes * ((count + kScaledBlock - 1) / kScaledBlock) + code_bytes(count);
  }
  std::size_t cut_bytes() const override { return kScaleBytes + (LevelBits == 3 ? 1 : 0); }

  void encode(std::span<const float> val, std::span<std::byte> out) const override {
    while (!val.empty()) {
      const auto block = val.first(std::min(kScaledBlock, val.size()));
      encode_block(block, out.data());
      val = val.subspan(block.size());
      out = out.subspan(bytes(block.size()));
    }
  }

  void decode(std::span<const std::byte> payload, std::span<float> out) const override {
    while (!out.empty()) {
      const auto block = out.first(std::min(kScaledBlock, out.size()));
      decode_block(payload.data(), block);
      payload = payload.subspan(bytes(block.size()));
      out = out.subspan(block.size());
    }
  }

 private:
  static constexpr unsigned kLevels = 1u << LevelBits;
  static constexpr const char* kName = LevelBits == 7 ? "log8" : "log4";
  // Neighbouring levels are at most 1.5 octaves apart, so a value is within a factor of two of the nearest level, and
  // the difference is exact.
  static constexpr unsigned kMaxOctaves = 3 * (kLevels - 2) / 2;
  // Below this many octaves no value is small enough to be worth dropping.
  static constexpr unsigned kWideOctaves = 3;

  static std::size_t code_bytes(std::size_t count) { return LevelBits == 7 ? count : (count + 1) / 2; }

  // From hi down over `octaves` at most; magnitudes below that share level 0, zero.
  static LogScale cut_scale(std::span<const float> block, std::uint16_t hi, unsigned octaves) {
    const unsigned drop = octaves << 7;  // of the exponent field
    const unsigned floor = hi >= drop + kLeastNormal ? hi - drop : kLeastNormal;
    const Extremes magnitudes =
        kernels().codings.extremes(block.data(), block.size(), static_cast<std::int32_t>(floor << 16));
    const float least = std::bit_cast<float>(std::min(magnitudes.least, kLargest));
    return {std::min(to_bf16(least).bits, hi), hi, true};
  }

  static unsigned octaves_of(LogScale scale) { return static_cast<unsigned>((scale.hi - scale.lo) + 127) >> 7; }

  static LogScale full_scale(std::span<const float> block) {
    const Extremes magnitudes = kernels().codings.extremes(block.data(), block.size(), 0);
    if (magnitudes.most == 0) return {0, 0, true};
    const std::uint16_t hi = std::max(to_bf16(std::bit_cast<float>(magnitudes.most)).bits, kLeastNormal);
    const std::uint16_t lo = to_bf16(std::bit_cast<float>(magnitudes.least)).bits;
    const LogScale scale{lo, hi, false};
    const bool reaches = lo >= kLeastNormal && octaves_of(scale) <= kMaxOctaves;
    return reaches ? scale : cut_scale(block, hi, kMaxOctaves);
  }

  // The border between two levels is half-way between the numbers, not their logarithms. Seen from the lower level that
  // is a fraction f > 1/2 of the step s, the same for all: log2((1 + 2^s) / 2) / s = 1/2 + x/4 - x^3/24 + ..., x = s
  // log(2) / 2.
  static LogQuantiser quantiser_of(LogScale scale) {
    LogQuantiser q{.first = scale.has_zero ? 1 : 0, .sign_bit = LevelBits};
    if (scale.has_zero) q.zero = std::bit_cast<std::int32_t>(0.5f * to_float(Bf16{scale.lo}));
    if (scale.lo == 0) q.zero = kLargest;
    if (scale.lo == scale.hi) return q;
    const std::uint32_t low = fixed_log2(std::uint32_t{scale.lo} << 16);
    const std::uint32_t high = fixed_log2(std::uint32_t{scale.hi} << 16);
    constexpr float kUnit = 1.0f / (1u << kLogBits);
    q.steps = static_cast<float>(kLevels - 1) - (scale.has_zero ? 1.0f : 0.0f);
    q.low_exponent = static_cast<std::int32_t>(low >> kLogBits);
    q.low_fraction = static_cast<float>(low % (1u << kLogBits)) * kUnit;
    const float octaves = static_cast<float>(high - low) * kUnit;
    q.per_octave = q.steps / octaves;
    const float x = 0.34657359f * octaves / q.steps;
    q.rounding = 0.5f - x * (0.25f - x * x * (1.0f / 24));
    return q;
  }

  using Codes = std::array<std::uint8_t, kScaledBlock>;

  static void quantise(std::span<const float> block, LogScale scale, Codes& codes) {
    kernels().codings.log_codes(quantiser_of(scale), block.data(), block.size(), codes.data());
  }

  // The sum of the squared differences, in four parts to have several additions in flight.
  static double squared_error(std::span<const float> block, LogScale scale, const Codes& codes) {
    std::array<float, kLevels> levels{};
    fill_levels(scale, levels);
    std::array<double, 4> sums{};
    for (std::size_t i = 0; i < block.size(); ++i) {
      const double error = std::fabs(block[i]) - levels[codes[i] % kLevels];
      sums[i % 4] += error * error;
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }

  // A few values near zero (sums that cancelled) would stretch the scale over many octaves at the expense of all
  // others. So the range is halved, and values below it sent to zero, for as long as that lowers the squared error of
  // the block.
  static LogScale best_codes(std::span<const float> block, Codes& codes) {
    LogScale scale = full_scale(block);
    quantise(block, scale, codes);
    if (octaves_of(scale) <= kWideOctaves) return scale;
    double least = squared_error(block, scale, codes);
    while (octaves_of(scale) > kWideOctaves) {
      const LogScale narrower = cut_scale(block, scale.hi, octaves_of(scale) / 2);
      Codes candidate{};
      quantise(block, narrower, candidate);
      const double error = squared_error(block, narrower, candidate);
      if (!(error < least)) break;
      scale = narrower;
      least = error;
      codes = candidate;
    }
    return scale;
  }

  static void encode_block(std::span<const float> block, std::byte* out) {
    Codes codes{};
    const LogScale scale = best_codes(block, codes);
    const auto lo = static_cast<std::uint16_t>(scale.lo | (scale.has_zero ? kZeroFlag : 0));
    std::memcpy(out, &lo, sizeof lo);
    std::memcpy(out + 2, &scale.hi, sizeof scale.hi);
    if constexpr (LevelBits == 3) join_nibbles(codes);
    std::memcpy(out + kScaleBytes, codes.data(), code_bytes(block.size()));
  }

  // Two codes per byte, eight codes at once.
  static void join_nibbles(Codes& codes) {
    for (std::size_t i = 0; i < kScaledBlock; i += 8) {
      std::uint64_t eight;
      std::memcpy(&eight, codes.data() + i, sizeof eight);
      eight = (eight | eight >> 4) & 0x00FF00FF00FF00FFu;
      eight = (eight | eight >> 8) & 0x0000FFFF0000FFFFu;
      const auto joined = static_cast<std::uint32_t>(eight | eight >> 16);
      std::memcpy(codes.data() + i / 2, &joined, sizeof joined);
    }
  }

  static LogScale read_scale(const std::byte* from) {
    std::uint16_t lo;
    std::uint16_t hi;
    std::memcpy(&lo, from, sizeof lo);
    std::memcpy(&hi, from + 2, sizeof hi);
    const LogScale scale{static_cast<std::uint16_t>(lo & ~kZeroFlag), hi, (lo & kZeroFlag) != 0};
    if (!is_valid(scale))
      fail<CommError>(kName, ": a block's magnitudes from bf16 ", scale.lo, " to ", hi, " are no scale");
    return scale;
  }

  static void decode_block(const std::byte* from, std::span<float> out) {
    std::array<float, 2 * kLevels> signed_levels{};
    fill_levels(read_scale(from), std::span(signed_levels).template first<kLevels>());
    for (unsigned l = 0; l < kLevels; ++l) signed_levels[kLevels + l] = -signed_levels[l];
    from += kScaleBytes;
    if constexpr (LevelBits == 7) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = signed_levels[std::to_integer<unsigned>(from[i])];
    } else {
      for (std::size_t i = 0; i + 1 < out.size(); i += 2) {
        const auto pair = std::to_integer<unsigned>(from[i / 2]);
        out[i] = signed_levels[pair & 15u];
        out[i + 1] = signed_levels[pair >> 4];
      }
      if (out.size() % 2 == 0) return;
      const auto last = std::to_integer<unsigned>(from[out.size() / 2]);
      out.back() = signed_levels[last & 15u];
      if (last >> 4 != 0) fail<CommError>("log4: padding bits are set");
    }
  }
};

constexpr Fp32Values kFp32;
constexpr Bf16Values kBf16;
constexpr Log<7> kLog8;
constexpr Log<3> kLog4;

}  // namespace

const ValueCodec& value_fp32() { return kFp32; }
const ValueCodec& value_bf16() { return kBf16; }
const ValueCodec& value_log8() { return kLog8; }
const ValueCodec& value_log4() { return kLog4; }

}  // namespace oktopk
