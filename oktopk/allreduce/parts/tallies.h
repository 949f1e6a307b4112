// SPDX-License-Identifier: Apache-2.0
// Integers with which all ranks of circulant steer threshold and cuts alike. They travel as varints in front of a frame
// (docs/wire_format.md), whose checksum covers them (tag_behind in gather.h): they cost a few bytes and no message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "oktopk/base/bytes.h"
#include "oktopk/base/varint.h"
#include "oktopk/sparse/coo.h"
#include "oktopk/sparse/tail.h"

namespace oktopk {

// Travels with each block of the reduce-scatter and is added like the data: at the end every owner has the sums over
// all ranks.
struct BlockTally {
  std::uint32_t contributors = 0;  // ranks with a non-empty selection
  std::uint64_t load = 0;          // their entries in this block, before merging
  std::int64_t log_threshold = 0;  // sum of their log2(smallest selected magnitude), in units of 1 / kOctave

  static constexpr std::int64_t kOctave = 1024;
  static constexpr std::size_t kMaxBytes = 5 + 2 * kMaxVarintBytes;
  // The tally of one rank, without the load, which differs from block to block.
  static BlockTally of(CooView selection);
  BlockTally& operator+=(const BlockTally& other);
};

// Travels with the share that an owner gathers. COST: ten varints, 10 to 45 B on most problems.
struct ShareTally {
  std::uint64_t load = 0;  // entries that arrived for the region, before merging
  NearTail near;

  static constexpr std::size_t kMaxBytes = (2 + NearTail::kBins) * kMaxVarintBytes;
};

void put(const BlockTally& tally, Bytes& out);
void put(const ShareTally& tally, Bytes& out);

// Cut the tally off the bytes. Throw CommError when the bytes cannot be one. Only the frame behind a tally shows
// whether it is undamaged and of this step.
BlockTally take_block_tally(std::span<const std::byte>& bytes, int peer);
ShareTally take_share_tally(std::span<const std::byte>& bytes, int peer);

// The bytes that put() appends.
template <class Tally>
double tally_bytes(const Tally& tally) {
  Bytes bytes;
  put(tally, bytes);
  return static_cast<double>(bytes.size());
}

}  // namespace oktopk
