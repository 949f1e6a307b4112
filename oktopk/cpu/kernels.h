// SPDX-License-Identifier: Apache-2.0
// All vector code of the library: one table of kernels per SIMD level (base/simd.h), and one dispatch, kernels(). Three
// groups: entries (used by sparse/), codings (codec/) and elements (device/). Kernels take raw pointers. The scalar
// kernels are the reference: every level gives their bits. Files are named after their level; loops.h and passes.h are
// written once and compiled for several levels.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "oktopk/base/gradient.h"
#include "oktopk/base/simd.h"

namespace oktopk {

constexpr std::uint32_t kAboveAll = kMagnitude + 1;  // no magnitude is as large
constexpr std::uint32_t kInfinityBits = 0x7f800000U;

// ---- Entries: indices and values in two parallel arrays ----

struct CooSource {
  const std::uint32_t* idx = nullptr;
  const float* val = nullptr;
  std::size_t size = 0;
  CooSource from(std::size_t i) const { return {idx + i, val + i, size - i}; }
};

// Where kernels write entries.
struct CooSink {
  std::uint32_t* idx = nullptr;
  float* val = nullptr;
  CooSink operator+(std::size_t count) const { return {idx + count, val + count}; }
};

constexpr std::size_t kSlack = 8;  // kernels may write so many entries beyond their last

// A stretch of the index space in the L1 cache (sparse/sum.cc): dense values, and a byte per group of 8 that says
// whether anything was added there. Bytes are stored without being read, so neighbouring entries do not wait for each
// other as they would at the words of a bitmap.
struct SumBlock {
  static constexpr std::uint32_t kWidth = 8192;  // floats: 32 KiB
  static constexpr std::uint32_t kGroup = 8;
  static constexpr std::size_t kWordGroups = 64;
  static constexpr std::size_t kWord = kWordGroups * kGroup;

  alignas(64) std::array<float, kWidth> value;
  alignas(64) std::array<std::uint8_t, kWidth / kGroup> touched;
};

// REQUIRES of all that write entries: room for kSlack more.
struct EntryKernels {
  // From this many entries per block on, blocks are faster than merges of three or more vectors.
  std::size_t dense_block;

  // Writes the nonzero values among the first `words` * kWord, in order, and sets them to zero; returns how many.
  // `begin` is the index of the first.
  std::size_t (*drain)(SumBlock& block, std::size_t words, std::uint32_t begin, CooSink out);

  // As combine(), where an index occurs at most twice.
  std::size_t (*combine_pairs)(CooSource sorted, CooSink out);

  // Splits `from`: magnitudes of at least `least` go to `kept`, which may be `from` itself, the others to `dropped`
  // unless that is null. Returns how many were kept.
  std::size_t (*filter)(CooSource from, std::uint32_t least, CooSink kept, CooSink dropped);

  // The magnitudes in low .. low + width, in order; returns how many.
  std::size_t (*collect)(std::span<const float> values, std::uint32_t low, std::uint32_t width, std::uint32_t* out);

  // The entries of `a` whose index is in the sorted `indices`; returns how many.
  std::size_t (*intersect)(CooSource a, std::span<const std::uint32_t> indices, CooSink out);
};

// Adds neighbours of equal index, in their order, and leaves out zeros; returns how many are left. `out` may be
// `sorted` itself.
std::size_t combine(CooSource sorted, CooSink out);

// ---- Codings ----

// Packed fields stand in blocks of 512, 16 lanes of 32 (docs/wire_format.md).
constexpr std::size_t kFieldBlock = 512;
constexpr std::size_t kFieldLanes = 16;
constexpr unsigned kMaxFieldBits = 32;

// How many ones were listed, and how many words were read to find them.
struct OnesListed {
  std::size_t ones = 0;
  std::size_t words = 0;
};
// list_ones finishes its last word, and may write this many elements behind the room.
constexpr std::size_t kOnesSlack = 64 + 16;

// The high parts of a block of Elias-Fano indices.
struct HighBits {
  const std::uint32_t* ones;  // positions
  std::uint32_t first;        // number of the first one in the whole bit sequence
  unsigned low_width;
  std::uint32_t begin;
};

// Which bits of an index, relative to the begin of the range, are its low part.
struct LowPart {
  std::uint32_t begin;
  unsigned width;
};

// The level of a magnitude is `first` plus the whole part, at most `steps`, of (log2(magnitude) - low) * per_octave +
// rounding. Magnitudes up to `zero` have level zero.
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

struct CodingKernels {
  bool (*increases)(const std::uint32_t* idx, std::size_t count);

  // The gaps less one between indices, from `next` on; returns the or of all. count >= 1.
  std::uint32_t (*gaps)(const std::uint32_t* idx, std::size_t count, std::uint32_t next, std::uint32_t* gaps);

  // 512 fields of `width` <= 32 bits, without any bit above, and 64 * width bytes.
  void (*pack)(const std::uint32_t* fields, unsigned width, std::byte* out);
  void (*unpack)(const std::byte* from, unsigned width, std::uint32_t* fields);

  // unpack, and the sum of the gaps from `next` on, modulo 2^32.
  void (*unpack_gaps)(const std::byte* from, unsigned width, std::uint32_t next, std::uint32_t* out);

  // The positions of the ones of whole 64-bit words, until there are `room` or more; the first word is at position
  // `base`. `out` has room for kOnesSlack more.
  OnesListed (*list_ones)(std::span<const std::byte> words, std::uint32_t base, std::uint32_t* out, std::size_t room);

  // Sets bit ((idx[i] - begin) >> width) + i of zeros for every i; may write 15 bytes behind the last.
  void (*set_high_bits)(const LowPart& low, const std::uint32_t* idx, std::size_t count, std::byte* out);

  // low[i] becomes begin + (((ones[i] - first - i) << low_width) | low[i]), modulo 2^32.
  void (*join)(const HighBits& high, std::uint32_t* low, std::size_t count);

  void (*to_bf16)(const float* val, std::size_t count, std::byte* out);
  // The next three return false if any value is not finite.
  bool (*from_bf16)(const std::byte* from, std::size_t count, float* val);
  // to_bf16, and val becomes its rounding error, exactly.
  bool (*split_bf16)(float* val, std::size_t count, std::byte* out);
  // sum += from_bf16.
  bool (*add_bf16)(const std::byte* from, std::size_t count, float* sum);

  // The largest magnitude, and the least whose bits are at least `floor`; that is INT32_MAX if there is none.
  Extremes (*extremes)(const float* val, std::size_t count, std::int32_t floor);
  // Sign and level.
  void (*log_codes)(const LogQuantiser& quantiser, const float* val, std::size_t count, std::uint8_t* codes);
};

// ---- Elements: passes over the n values of a gradient or an accumulator ----
//
// Selecting takes two kernels: mark sets one bit per element that passes, emit packs the marked elements into the
// output. A tile is small enough to be in the L1 cache when emit reads it again, and for emit to end before the
// processor's own prefetching falls behind.

constexpr std::size_t kTile = 2048;  // elements

// Which elements of a tile pass: bit i % 64 of word i / 64.
using Marks = std::array<std::uint64_t, kTile / 64>;

constexpr std::size_t kEmitSlack = 2;  // emit needs room for the whole tile and this many more

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

struct ElementKernels {
  template <class Kernel>
  using PerType = std::array<Kernel, 3>;  // by FloatType

  // Marks the elements of a tile whose magnitude has bits >= bound; bound >= 1, so zeros never pass. Writes whole
  // words, as many as x needs.
  void (*mark)(std::span<const float> x, std::uint32_t bound, std::uint64_t* marks);
  PerType<void (*)(std::span<float> acc, const Addend& add, std::uint32_t bound, std::uint64_t* marks)> accumulate_mark;
  // Writes the marked elements, with indices from `base` on; returns how many. `next` is the tile that a scan reads
  // next: memory would be idle while entries are written, so some of it is prefetched. A pass that also writes gives
  // null: its stores keep memory busy.
  std::size_t (*emit)(const float* tile, const Marks& marks, std::uint32_t base, CooSink to, const float* next);
  // These take any number of elements.
  PerType<void (*)(std::span<float> acc, const Addend& add)> accumulate;
  void (*multiply)(std::span<float> x, float factor);
  PerType<std::size_t (*)(const void* x, std::size_t n)> first_nonfinite;
  void (*add_moments)(std::span<const float> x, MomentLanes& lanes);
};

// ---- Dispatch ----

struct Kernels {
  const EntryKernels& entries;
  const CodingKernels& codings;
  const ElementKernels& elements;
};

extern const EntryKernels kScalarEntries, kAvx2Entries;
extern const CodingKernels kScalarCodings;
extern const ElementKernels kScalarElements;

// The kernels of a level; on processors other than x86-64, the scalar ones.
const Kernels& kernels(SimdLevel level);
// The kernels of the level in use.
inline const Kernels& kernels() { return kernels(simd_level()); }

}  // namespace oktopk
