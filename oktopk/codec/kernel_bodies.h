// SPDX-License-Identifier: Apache-2.0
// Loops that the compiler turns into vector code by itself, written once: kernels*.cc inline them
// into a function per level, so that each is compiled for the instructions of that level. `Lanes`
// is the number of 32-bit lanes in a register. Integers, and floats without any sum that could be
// reordered: all levels give the same bits.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "oktopk/codec/bf16.h"
#include "oktopk/codec/kernels.h"

namespace oktopk::bodies {

template <unsigned Lanes>
struct Register {
  typedef std::uint32_t Type __attribute__((vector_size(4 * Lanes)));
};

[[gnu::always_inline]] inline bool increasing(const Index* idx, std::size_t count) {
  Index wrong = 0;
  for (std::size_t i = 1; i < count; ++i) wrong |= idx[i - 1] < idx[i] ? 0u : 1u;
  return wrong == 0;
}

[[gnu::always_inline]] inline Index gaps(const Index* idx, Index next, Index* gaps) {
  Index any = gaps[0] = idx[0] - next;
  for (std::size_t i = 1; i < kFieldBlock; ++i) {
    gaps[i] = idx[i] - idx[i - 1] - 1;
    any |= gaps[i];
  }
  return any;
}

// Lane j of word k of the block is at 16 * k + j: every lane packs its own 32 fields.
template <unsigned Lanes>
[[gnu::always_inline]] inline void pack(const std::uint32_t* fields, unsigned width, std::byte* out) {
  using Row = typename Register<Lanes>::Type;
  for (std::size_t lane = 0; lane < kFieldLanes; lane += Lanes) {
    std::byte* to = out + sizeof(Index) * lane;
    Row word = {};
    unsigned used = 0;
    for (std::size_t i = lane; i < kFieldBlock; i += kFieldLanes) {
      Row field;
      std::memcpy(&field, fields + i, sizeof field);
      word |= field << used;
      used += width;
      if (used < 32) continue;
      std::memcpy(to, &word, sizeof word);
      to += sizeof(Index) * kFieldLanes;
      used -= 32;
      word = used == 0 ? Row{} : field >> (width - used);
    }
  }
}

template <unsigned Lanes>
[[gnu::always_inline]] inline void unpack(const std::byte* from, unsigned width, std::uint32_t* fields) {
  using Row = typename Register<Lanes>::Type;
  if (width == 0) {
    std::memset(fields, 0, sizeof(Index) * kFieldBlock);
    return;
  }
  const auto mask = static_cast<std::uint32_t>((std::uint64_t{1} << width) - 1);
  for (std::size_t lane = 0; lane < kFieldLanes; lane += Lanes) {
    const std::byte* at = from + sizeof(Index) * lane;
    unsigned used = 0;
    for (std::size_t i = lane; i < kFieldBlock; i += kFieldLanes) {
      Row word;
      std::memcpy(&word, at, sizeof word);
      Row field = word >> used;
      used += width;
      if (used >= 32) {
        at += sizeof(Index) * kFieldLanes;
        used -= 32;
        if (used != 0) {
          std::memcpy(&word, at, sizeof word);
          field |= word << (width - used);
        }
      }
      field &= mask;
      std::memcpy(fields + i, &field, sizeof field);
    }
  }
}

[[gnu::always_inline]] inline void join(const HighBits& high, Index* low, std::size_t count) {
  const HighBits h = high;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t part = h.ones[i] - h.first - static_cast<std::uint32_t>(i);
    low[i] = h.begin + ((part << h.low_width) | low[i]);
  }
}

[[gnu::always_inline]] inline void to_bf16(const float* val, std::size_t count, std::byte* out) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint16_t half = oktopk::to_bf16(val[i]);
    std::memcpy(out + sizeof half * i, &half, sizeof half);
  }
}

[[gnu::always_inline]] inline bool from_bf16(const std::byte* from, std::size_t count, float* val) {
  std::uint32_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t half;
    std::memcpy(&half, from + sizeof half * i, sizeof half);
    wrong |= (half & 0x7F80u) == 0x7F80u ? 1u : 0u;
    val[i] = oktopk::from_bf16(half);
  }
  return wrong == 0;
}

[[gnu::always_inline]] inline bool split_bf16(float* val, std::size_t count, std::byte* out) {
  std::uint32_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint16_t half = oktopk::to_bf16(val[i]);
    wrong |= (std::bit_cast<std::uint32_t>(val[i]) & 0x7F800000u) == 0x7F800000u ? 1u : 0u;
    std::memcpy(out + sizeof half * i, &half, sizeof half);
    val[i] -= oktopk::from_bf16(half);
  }
  return wrong == 0;
}

[[gnu::always_inline]] inline bool add_bf16(const std::byte* from, std::size_t count, float* sum) {
  std::uint32_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t half;
    std::memcpy(&half, from + sizeof half * i, sizeof half);
    wrong |= (half & 0x7F80u) == 0x7F80u ? 1u : 0u;
    sum[i] += oktopk::from_bf16(half);
  }
  return wrong == 0;
}

[[gnu::always_inline]] inline Extremes extremes(const float* val, std::size_t count, std::int32_t floor) {
  std::int32_t least = INT32_MAX;
  std::int32_t most = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t bits = std::bit_cast<std::int32_t>(val[i]) & INT32_MAX;
    // All ones if below: as a condition it would keep the compiler from vectorising.
    const std::int32_t counted = bits | (((bits - floor) >> 31) & INT32_MAX);
    least = counted < least ? counted : least;
    most = bits > most ? bits : most;
  }
  return {least, most};
}

// The logarithm is a polynomial within 2e-5 that is exact at powers of two: far finer than the
// levels, which have 10 significant bits.
[[gnu::always_inline]] inline void log_codes(const LogQuantiser& quantiser, const float* val, std::size_t count,
                                             std::uint8_t* codes) {
  const LogQuantiser q = quantiser;
  for (std::size_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(val[i]);
    const auto magnitude = static_cast<std::int32_t>(bits & 0x7FFFFFFFu);
    const float m = std::bit_cast<float>((bits & 0x007FFFFFu) | 0x3F800000u) - 1.0f;
    const float bulge = 0.44191694f + m * (-0.26717863f + m * (0.14842493f + m * -0.04514793f));
    const auto octaves = static_cast<float>((magnitude >> 23) - q.low_exponent);
    const float log = octaves + (m + m * (1.0f - m) * bulge - q.low_fraction);
    float level = log * q.per_octave + q.rounding;
    level = level > 0.0f ? level : 0.0f;
    level = level < q.steps ? level : q.steps;
    std::int32_t code = static_cast<std::int32_t>(level) + q.first;
    code = magnitude > q.zero ? code : 0;
    codes[i] = static_cast<std::uint8_t>(code | static_cast<std::int32_t>((bits >> 31) << q.sign_bit));
  }
}

}  // namespace oktopk::bodies
