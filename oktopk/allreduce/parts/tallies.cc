// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/tallies.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "oktopk/base/error.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

// No ranks' thresholds sum to more than this, and P such sums do not overflow.
constexpr std::int64_t kMostLog = std::int64_t{1} << 44;

}  // namespace

BlockTally BlockTally::of(CooView selection) {
  if (selection.empty()) return {};
  const float smallest = std::max(smallest_magnitude(selection.val), std::numeric_limits<float>::min());
  return {.contributors = 1, .log_threshold = std::llround(kOctave * std::log2(smallest))};
}

BlockTally& BlockTally::operator+=(const BlockTally& other) {
  contributors += other.contributors;
  load += other.load;
  log_threshold += other.log_threshold;
  return *this;
}

void put(const BlockTally& tally, Bytes& out) {
  append_varint(tally.contributors, out);
  append_varint(tally.load, out);
  append_varint(zigzag(tally.log_threshold), out);
}

void put(const ShareTally& tally, Bytes& out) {
  append_varint(tally.load, out);
  append_varint(tally.near.arrivals, out);
  for (const std::uint64_t count : tally.near.below) append_varint(count, out);
}

BlockTally take_block_tally(std::span<const std::byte>& bytes, int peer) {
  const std::size_t there = bytes.size();
  std::uint64_t contributors = 0;
  std::uint64_t load = 0;
  std::uint64_t log = 0;
  if (!take_varint(bytes, contributors) || !take_varint(bytes, load) || !take_varint(bytes, log) ||
      contributors > std::numeric_limits<std::uint32_t>::max() || log > zigzag(kMostLog))
    fail<CommError>("from rank ", peer, ": expected the tally of a block, got ", there, " other bytes");
  return {static_cast<std::uint32_t>(contributors), load, unzigzag(log)};
}

ShareTally take_share_tally(std::span<const std::byte>& bytes, int peer) {
  const std::size_t there = bytes.size();
  ShareTally tally;
  bool good = take_varint(bytes, tally.load) && take_varint(bytes, tally.near.arrivals);
  for (std::uint64_t& count : tally.near.below) good = good && take_varint(bytes, count);
  if (!good) fail<CommError>("from rank ", peer, ": expected the tally of a share, got ", there, " other bytes");
  return tally;
}

}  // namespace oktopk
