// SPDX-License-Identifier: Apache-2.0
// The inner loops of the codings, one table per level of vector instructions (base/simd.h). All
// tables give the same bits. kernel_bodies.h has the loops that are written once and compiled for
// every level; what a compiler cannot find by itself (prefix sums, positions of set bits) is
// written in the files kernels*.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "oktopk/sparse/coo.h"

namespace oktopk {

// Packed fields stand in blocks of 512, 16 lanes of 32 (docs/wire_format.md).
inline constexpr std::size_t kFieldBlock = 512;
inline constexpr std::size_t kFieldLanes = 16;
inline constexpr unsigned kMaxFieldBits = 32;

// How many ones were listed, and how many words read to find them.
struct OnesListed {
  std::size_t ones = 0;
  std::size_t words = 0;
};
// list_ones finishes its last word, and may write this many elements behind the room.
inline constexpr std::size_t kOnesSlack = 64 + 16;

// Where each index of an Elias-Fano block comes from: its one, and its low bits.
struct HighBits {
  const std::uint32_t* ones;  // positions
  std::uint32_t first;        // number of the first of them in the whole bit sequence
  unsigned low_width;
  Index begin;
};

// Which bits of an index, relative to the begin of the range, are its low part.
struct LowPart {
  Index begin;
  unsigned width;
};

// The level of a magnitude is `first` plus the whole part, at most `steps`, of
// (log2(magnitude) - low) * per_octave + rounding, and zero up to the magnitude `zero`.
struct LogQuantiser {
  std::int32_t low_exponent = 0;  // whole part of low, plus 127
  float low_fraction = 0;
  float per_octave = 0;
  float rounding = 0;
  float steps = 0;
  std::int32_t first = 0;
  std::int32_t zero = -1;  // its bits; -1: none
  unsigned sign_bit = 7;
};

// Bits of magnitudes.
struct Extremes {
  std::int32_t least;
  std::int32_t most;
};

struct CodecKernels {
  // Whether idx[0] < idx[1] < ...; count >= 1.
  bool (*increasing)(const Index* idx, std::size_t count);

  // 512 gaps less one behind `next`, one past the index before; returns the or of all.
  Index (*gaps)(const Index* idx, Index next, Index* gaps);

  // 512 fields of `width` <= 32 bits, without any bit above, and 64 * width bytes.
  void (*pack)(const std::uint32_t* fields, unsigned width, std::byte* out);
  void (*unpack)(const std::byte* from, unsigned width, std::uint32_t* fields);

  // unpack, and the sum of the gaps from `next` on, modulo 2^32.
  void (*unpack_gaps)(const std::byte* from, unsigned width, Index next, Index* out);

  // The positions of the ones of whole words of 64 bits, until there are `room` or more; the first
  // word is at position `base`. `out` has room for kOnesSlack more.
  OnesListed (*list_ones)(std::span<const std::byte> words, Index base, Index* out, std::size_t room);

  // Sets bit ((idx[i] - begin) >> width) + i of zeros for every i; may write 15 bytes behind the
  // last.
  void (*set_high_bits)(const LowPart& low, const Index* idx, std::size_t count, std::byte* out);

  // low[i] becomes begin + (((ones[i] - first - i) << low_width) | low[i]), modulo 2^32.
  void (*join)(const HighBits& high, Index* low, std::size_t count);

  void (*to_bf16)(const float* val, std::size_t count, std::byte* out);
  // False if any is not finite.
  bool (*from_bf16)(const std::byte* from, std::size_t count, float* val);
  // to_bf16, and val becomes what its bf16 lacks, exactly. False if any is not finite.
  bool (*split_bf16)(float* val, std::size_t count, std::byte* out);
  // sum += from_bf16. False if any is not finite.
  bool (*add_bf16)(const std::byte* from, std::size_t count, float* sum);

  // Of the magnitudes whose bits are at least `floor`; the least is INT32_MAX if there are none.
  Extremes (*extremes)(const float* val, std::size_t count, std::int32_t floor);
  // Sign and level.
  void (*log_codes)(const LogQuantiser& quantiser, const float* val, std::size_t count, std::uint8_t* codes);
};

// The table of the level in use.
const CodecKernels& codec_kernels();

// By level; on other processors no_simd.cc gives the scalar one for all.
const CodecKernels& codec_kernels_scalar();
const CodecKernels& codec_kernels_avx2();
const CodecKernels& codec_kernels_avx512();

}  // namespace oktopk
