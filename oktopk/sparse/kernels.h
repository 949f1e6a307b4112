// SPDX-License-Identifier: Apache-2.0
// The inner loops of this folder: a table of functions per level of vector instructions, chosen at
// run time (base/simd.h). All levels give the same bits. AVX-512 uses the row of AVX2: draining 16
// lanes with its compress instructions was slower on Zen 4, the one machine where it was tried.
// Magnitudes are compared as the bits of |x|: the order of the numbers, with infinities and then
// NaNs as the largest, so that no input is undefined.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <utility>

#include "oktopk/base/simd.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

// Where to write: two parallel arrays.
struct CooSink {
  Index* idx = nullptr;
  float* val = nullptr;
  CooSink operator+(std::size_t count) const { return {idx + count, val + count}; }
};

constexpr std::size_t kSlack = 8;  // kernels may write so many entries beyond their last

// Empties `out` and makes room for `count` entries and what kernels write beyond; resize() it to
// what was written. A little more than asked for, so that slowly growing sizes rarely allocate.
inline CooSink make_room(SparseVector& out, std::size_t count) {
  const std::size_t room = count + kSlack;
  out.clear();
  if (out.idx.capacity() < room) out.idx.reserve(room + room / 8);
  if (out.val.capacity() < room) out.val.reserve(room + room / 8);
  out.resize(room);
  return {out.idx.data(), out.val.data()};
}

constexpr std::uint32_t kMagnitude = 0x7fffffffU;
constexpr std::uint32_t kAboveAll = kMagnitude + 1;  // no magnitude is as large
inline std::uint32_t magnitude_bits(float x) { return std::bit_cast<std::uint32_t>(x) & kMagnitude; }

// A stretch of the index space in the L1 cache (sum.cc): dense values, and a byte per group of 8
// that says whether anything was added there. A byte is stored without being read, so entries that
// follow each other closely do not wait for each other as they would at the words of a bitmap.
struct SumBlock {
  static constexpr Index kWidth = 8192;  // floats: 32 KiB
  static constexpr Index kGroup = 8;
  static constexpr std::size_t kWordGroups = 64;
  static constexpr std::size_t kWord = kWordGroups * kGroup;

  alignas(64) std::array<float, kWidth> value;
  alignas(64) std::array<std::uint8_t, kWidth / kGroup> touched;
};

struct SparseKernels {
  // From so many entries per block on, blocks are faster than merges of three or more vectors.
  std::size_t dense_block;

  // Writes what is not zero of the first `words` * kWord values, in order, and leaves them zero;
  // returns how many. `begin`: the index of the first. REQUIRES: kSlack.
  std::size_t (*drain)(SumBlock& block, std::size_t words, Index begin, CooSink out);

  // Adds neighbours of equal index, at most two of each, and leaves out what is zero; returns how
  // many are left. `out` may be `sorted` itself. REQUIRES: kSlack.
  std::size_t (*combine_pairs)(CooView sorted, CooSink out);

  // Splits `from` at the magnitude `least`: what is as large or larger goes to `kept`, which may be
  // `from` itself, the rest to `dropped` unless that is null. Returns how many were kept.
  // REQUIRES: kSlack.
  std::size_t (*filter)(CooView from, std::uint32_t least, CooSink kept, CooSink dropped);

  // The magnitudes of low .. low + width, in order; returns how many. REQUIRES: kSlack.
  std::size_t (*collect)(std::span<const float> values, std::uint32_t low, std::uint32_t width, std::uint32_t* out);

  // The smallest and the largest magnitude. REQUIRES: values is not empty.
  std::pair<std::uint32_t, std::uint32_t> (*extremes)(std::span<const float> values);

  // The entries of `a` whose index is in sorted `indices`; returns how many. REQUIRES: kSlack.
  std::size_t (*intersect)(CooView a, std::span<const Index> indices, CooSink out);
};

extern const SparseKernels kScalarKernels;

// On processors without variants: the scalar ones.
const SparseKernels& avx2_kernels();

inline const SparseKernels& sparse_kernels() {
  return simd_level() == SimdLevel::scalar ? kScalarKernels : avx2_kernels();
}

}  // namespace oktopk
