// SPDX-License-Identifier: Apache-2.0
// What differs between the vector levels of the CPU device: kernels over one tile, one table per
// level. cpu.cc walks the tiles, clears, makes room and divides the work between threads.
//
// Selecting takes two kernels: mark sets one bit per element that passes, emit packs the marked
// ones into the output. A tile is small enough to be in the L1 cache when emit reads it again, and
// for emit to end before the processor's own prefetching falls behind.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "oktopk/base/simd.h"
#include "oktopk/device/gradient.h"
#include "oktopk/sparse/coo.h"
#include "oktopk/sparse/kernels.h"

namespace oktopk {

inline constexpr std::size_t kTile = 2048;  // elements

inline constexpr std::uint32_t kInfinityBits = 0x7f800000U;

// The place of T's kernel in a table by FloatType.
template <class T>
constexpr std::size_t index_of();
template <>
constexpr std::size_t index_of<float>() {
  return static_cast<std::size_t>(FloatType::fp32);
}
template <>
constexpr std::size_t index_of<Bf16>() {
  return static_cast<std::size_t>(FloatType::bf16);
}
template <>
constexpr std::size_t index_of<Fp16>() {
  return static_cast<std::size_t>(FloatType::fp16);
}

// Which elements of a tile pass: bit i % 64 of word i / 64.
using Marks = std::array<std::uint64_t, kTile / 64>;

// Where the marked elements go: room for the whole tile and kEmitSlack more.
struct Target {
  Index base = 0;  // of the tile's first element
  Index* idx = nullptr;
  float* val = nullptr;
};
inline constexpr std::size_t kEmitSlack = 2;

// What a scan reads next. While entries are written memory would be idle, and the processor's own
// prefetching fall asleep, so every few entries ask for some of it. A pass that also writes is
// better off without: its stores keep memory busy.
class Following {
 public:
  // Nothing: asks for the line at `here`, which is in the cache, again and again.
  static Following none(const float* here) { return Following(here, 0); }
  // The kTile elements at x.
  static Following tile(const float* x) { return Following(x, kLine); }

  void prefetch() {
    for (int line = 0; line < 4; ++line, next_ += step_) __builtin_prefetch(next_);
  }

 private:
  static constexpr std::size_t kLine = 64 / sizeof(float);
  Following(const float* next, std::size_t step) : next_(next), step_(step) {}

  const float* next_;
  std::size_t step_;
};

struct Addend {
  const void* gradient = nullptr;  // as many elements as the tile has
  float scale = 1.0F;
};

// Element i of a block is added to lane i mod 16, so that every level adds in the same order.
struct MomentLanes {
  static constexpr std::size_t kLanes = 16;
  std::array<double, kLanes> sum{};
  std::array<double, kLanes> squares{};
};

// The exponent bits of T, in each T of 32 bits: all set in what is not finite, and only there.
template <class T>
constexpr std::uint32_t exponent_bits() {
  constexpr std::array<std::uint32_t, 3> kBits = {kInfinityBits, 0x7f807f80U, 0x7c007c00U};
  return kBits[index_of<T>()];
}

struct CpuKernels {
  template <class Kernel>
  using PerType = std::array<Kernel, 3>;  // by FloatType

  // Marks the elements of a tile whose magnitude has bits >= bound; bound >= 1, so zeros never
  // pass. Whole words are written, as many as x needs.
  void (*mark)(std::span<const float> x, std::uint32_t bound, std::uint64_t* marks);
  PerType<void (*)(std::span<float> acc, const Addend& add, std::uint32_t bound, std::uint64_t* marks)> accumulate_mark;
  // Returns the number of entries.
  std::size_t (*emit)(const float* tile, const Marks& marks, const Target& to, Following next);
  // These take any number of elements.
  PerType<void (*)(std::span<float> acc, const Addend& add)> accumulate;
  void (*multiply)(std::span<float> x, float factor);
  PerType<std::size_t (*)(const void* x, std::size_t n)> first_nonfinite;
  void (*add_moments)(std::span<const float> x, MomentLanes& lanes);
};

const CpuKernels& cpu_kernels_scalar();
const CpuKernels& cpu_kernels_avx2();
const CpuKernels& cpu_kernels_avx512();

}  // namespace oktopk
