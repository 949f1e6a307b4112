// SPDX-License-Identifier: Apache-2.0
// The messages of preset `slots`, and the integer rules that both of its homes share: allreduce/slots.cc on the host
// and gpu/kernels/slots.cu on the GPU. Everything here is integers and shifts, so both homes give the same bits.
//
//   Tiles     256 neighbouring elements. Tile t belongs to rank t mod P: every owner has its part of every layer.
//   Place     an owner numbers the elements of its tiles from 0 on.
//   Block     4096 places (16 tiles). An entry is one word: 12 bits of place in its block, 20 bits of value.
//   Message   16 words of head, a 16-bit count per block, then the entries. Its size follows from n, k and P.
//   Order     blocks follow each other from a block on that changes with the step; entries of a block by place, at most
//             1024 of them. Entries that do not fit stay where they were. Because the order changes, no block waits for
//             ever.
//   Threshold the bits of a magnitude. Their difference is a difference of logarithms, near enough, so a threshold is
//             steered by adding to its bits.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define OKTOPK_BOTH __host__ __device__ constexpr
#else
#define OKTOPK_BOTH constexpr
#endif

namespace oktopk::slots {

// ---- Where elements live ----

constexpr std::uint32_t kTile = 256;
constexpr std::uint32_t kBlock = 4096;
constexpr std::uint32_t kBlockTiles = kBlock / kTile;
constexpr std::uint32_t kMostOfBlock = 1024;  // entries of a block that one step may send

OKTOPK_BOTH std::uint64_t divide_up(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

// How n elements are dealt to P owners.
struct Deal {
  std::uint64_t n = 0;
  std::uint32_t P = 1;
  std::uint32_t blocks = 0;  // of each owner; equal for all, so that all messages have one size

  static OKTOPK_BOTH Deal of(std::uint64_t n, std::uint32_t P) {
    return {n, P, static_cast<std::uint32_t>(divide_up(divide_up(divide_up(n, kTile), P), kBlockTiles))};
  }
  OKTOPK_BOTH std::uint32_t owner(std::uint64_t i) const { return static_cast<std::uint32_t>(i / kTile % P); }
  OKTOPK_BOTH std::uint64_t place(std::uint64_t i) const { return i / kTile / P * kTile + i % kTile; }
  // May be n or more in an owner's last tiles: such places stay empty.
  OKTOPK_BOTH std::uint64_t index(std::uint32_t rank, std::uint64_t place) const {
    return (place / kTile * P + rank) * kTile + place % kTile;
  }
  OKTOPK_BOTH std::uint64_t places() const { return std::uint64_t{blocks} * kBlock; }
};

// ---- Entries ----

constexpr unsigned kValueBits = 20;  // sign, 8 exponent bits, 11 fraction bits
constexpr unsigned kDropped = 12;    // bits of a float that a value does not have
constexpr std::uint32_t kValueMask = (1U << kValueBits) - 1;
constexpr std::uint32_t kLeastBound = 1U << kDropped;  // smaller magnitudes would round to zero
constexpr std::uint32_t kInfinity = 0x7f800000U;

// Rounds the bits of a finite float to the nearest value, ties to even; large ones to the largest finite value.
OKTOPK_BOTH std::uint32_t value_of(std::uint32_t float_bits) {
  const std::uint32_t magnitude = float_bits & 0x7fffffffU;
  const std::uint32_t rounded = (magnitude + 0x7ffU + ((magnitude >> kDropped) & 1U)) >> kDropped;
  const std::uint32_t most = 0x7f7ffU;
  return (float_bits >> 31 << (kValueBits - 1)) | (rounded < most ? rounded : most);
}
// The bits of the float.
OKTOPK_BOTH std::uint32_t float_bits_of(std::uint32_t value) {
  return (value >> (kValueBits - 1) & 1U) << 31 | (value & (kValueMask >> 1)) << kDropped;
}
OKTOPK_BOTH std::uint32_t entry_of(std::uint32_t place_in_block, std::uint32_t float_bits) {
  return place_in_block << kValueBits | value_of(float_bits);
}
OKTOPK_BOTH std::uint32_t place_of(std::uint32_t entry) { return entry >> kValueBits; }
OKTOPK_BOTH std::uint32_t value_bits_of(std::uint32_t entry) { return float_bits_of(entry & kValueMask); }

// ---- Messages ----

constexpr std::uint32_t kStepsUp = 4;    // quarter octaves above the threshold that are counted
constexpr std::uint32_t kStepsDown = 2;  // and below it
constexpr std::uint32_t kTail = kStepsUp + 1 + kStepsDown;
constexpr std::uint32_t kQuarterOctave = 1U << 21;

// A sender met a value that is not finite: the step is void. An owner's sum overflowed: no step can follow.
constexpr std::uint32_t kBadValue = 1;
constexpr std::uint32_t kBadSum = 2;

struct Head {
  std::uint32_t tag = 0;    // of the step, n, k and options
  std::uint32_t check = 0;  // of counts and entries
  std::uint32_t count = 0;  // entries that follow
  std::uint32_t bad = 0;    // on GPUs: kBadValue, kBadSum
  // Shares alone have the rest: the threshold's bits, and reached[j], the values of a magnitude of at least the
  // threshold and (j - kStepsDown) quarter octaves, by the bits that travel for entries.
  std::uint32_t bound = 0;
  std::uint32_t reached[kTail] = {};
  std::uint32_t unused[16 - 5 - kTail] = {};
};
static_assert(sizeof(Head) == 64);
constexpr std::uint32_t kHeadWords = sizeof(Head) / 4;

OKTOPK_BOTH std::uint64_t root_of(std::uint64_t x) {
  std::uint64_t root = 0;
  for (std::uint64_t bit = std::uint64_t{1} << 31; bit > 0; bit >>= 1)
    if ((root + bit) * (root + bit) <= x) root += bit;
  return root;
}

// Entries that fit into a message: a tenth more than k/P, and five deviations of a count of this size.
OKTOPK_BOTH std::uint32_t message_room(const Deal& deal, std::uint64_t k) {
  const std::uint64_t mean = divide_up(k, deal.P);
  const std::uint64_t wanted = mean + mean / 10 + 5 * root_of(mean) + 16;
  return static_cast<std::uint32_t>(wanted < deal.places() ? wanted : deal.places());
}

OKTOPK_BOTH std::uint32_t count_words(const Deal& deal) { return (deal.blocks + 1) / 2; }
OKTOPK_BOTH std::uint64_t message_words(const Deal& deal, std::uint64_t k) {
  return kHeadWords + count_words(deal) + message_room(deal, k);
}

// The first block of a message in this step.
OKTOPK_BOTH std::uint32_t first_block(const Deal& deal, std::uint64_t step) {
  const std::uint64_t fraction = step * 2654435761ULL & 0xffffffffULL;
  return static_cast<std::uint32_t>(fraction * deal.blocks >> 32);
}

// The check is the sum of this over the counts of all blocks and over all entries, each with its number; entries are
// numbered from the number of blocks on.
OKTOPK_BOTH std::uint32_t check_of(std::uint32_t word, std::uint32_t number) {
  std::uint32_t x = word ^ (number * 0x9e3779b1U + 0x7f4a7c15U);
  x = (x ^ (x >> 16)) * 0x85ebca6bU;
  x = (x ^ (x >> 13)) * 0xc2b2ae35U;
  return x ^ (x >> 16);
}

// ---- Thresholds ----

// The tag of a step's messages.
OKTOPK_BOTH std::uint32_t tag_of(std::uint32_t tag, std::uint64_t step) {
  return tag ^ (static_cast<std::uint32_t>(step) * 2654435761U);
}

// The step of the tail's counts to which a magnitude belongs; kTail: to none, it is too small.
OKTOPK_BOTH std::uint32_t tail_step(std::uint32_t magnitude, std::uint32_t bound) {
  if (magnitude >= bound) {
    const std::uint32_t up = (magnitude - bound) / kQuarterOctave;
    return kStepsDown + (up < kStepsUp ? up : kStepsUp);
  }
  const std::uint32_t down = (bound - 1 - magnitude) / kQuarterOctave;
  return magnitude > 0 && down < kStepsDown ? kStepsDown - 1 - down : kTail;
}

// Where the count would have been `aim`, from the counts that `bound` gave; half of the way there. Counts are sums over
// ranks for the global threshold. Below the counted steps the lowest one is taken to go on.
OKTOPK_BOTH std::uint32_t steered(std::uint32_t bound, const std::uint64_t (&reached)[kTail], std::uint64_t aim) {
  const std::int64_t step = kQuarterOctave;
  std::int64_t offset = 0;
  if (reached[kStepsDown] >= aim) {
    std::uint32_t j = kStepsDown;
    while (j + 1 < kTail && reached[j + 1] > aim) ++j;
    offset = (static_cast<std::int64_t>(j) - kStepsDown) * step;
    if (j + 1 < kTail && reached[j] > reached[j + 1])
      offset += static_cast<std::int64_t>(step * (reached[j] - aim) / (reached[j] - reached[j + 1]));
  } else {
    std::uint32_t j = kStepsDown;
    while (j > 0 && reached[j] < aim && reached[j - 1] > reached[j]) --j;
    const std::uint64_t width = reached[j] - reached[j + 1];  // values between step j and the next larger one
    offset = (static_cast<std::int64_t>(j) - kStepsDown) * step;
    if (reached[j] >= aim)
      offset += static_cast<std::int64_t>(step * (reached[j] - aim) / width);
    else if (reached[j] == 0)
      offset -= 8 * step;
    else if (aim / 4 > reached[j])
      offset -= 4 * step;
    else if (aim - reached[j] < width)
      offset -= static_cast<std::int64_t>(step * (aim - reached[j]) / width);
    else
      offset -= step;
  }
  const std::int64_t next = static_cast<std::int64_t>(bound) + offset / 2;
  const std::int64_t most = 0x7f000000;
  return static_cast<std::uint32_t>(next < kLeastBound ? kLeastBound : next > most ? most : next);
}

// The heads of all shares of a step, summed up.
struct ShareCounts {
  std::uint64_t reached[kTail] = {};
  std::uint64_t bounds = 0;
  std::uint64_t filled = 0;  // owners with a threshold of their own

  OKTOPK_BOTH void add(const Head& head) {
    for (std::uint32_t j = 0; j < kTail; ++j) reached[j] += head.reached[j];
    if (head.bound <= kLeastBound) return;
    bounds += head.bound;
    ++filled;
  }
  // The next global threshold; after a first step, in which each owner had its own, their mean.
  OKTOPK_BOTH std::uint32_t next_bound(std::uint32_t bound, bool was_first, std::uint64_t k) const {
    if (!was_first) return steered(bound, reached, k);
    return filled > 0 ? static_cast<std::uint32_t>(bounds / filled) : kLeastBound;
  }
};

}  // namespace oktopk::slots
