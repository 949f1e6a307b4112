// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/gather.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/base/varint.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

// No ranks' thresholds sum to more than this, and P such sums do not overflow.
constexpr std::int64_t kMostLog = std::int64_t{1} << 44;

}  // namespace

Frame expect_frame(std::span<const std::byte> bytes, const FrameSpec& spec, int peer) {
  try {
    return open_frame(bytes, spec);
  } catch (const CommError& error) {
    fail<CommError>("from rank ", peer, ": ", error.what());
  }
}

std::uint32_t tag_behind(std::span<const std::byte> head, std::uint32_t tag) {
  return static_cast<std::uint32_t>(hash_bytes(head, tag));
}

SparseVector* error_sink(Codec codec, SparseVector& returned) { return codec.lossless() ? nullptr : &returned; }

Bytes& ShareGather::begin() {
  mine_.clear();
  return mine_;
}

void ShareGather::run(const Step& step, const Cuts& cuts,
                      const std::function<std::size_t(int, std::size_t)>& capacity) {
  ranges_.clear();
  capacities_.clear();
  for (int r = 0; r < step.P(); ++r) {
    ranges_.push_back(cuts.empty() ? Range{0, step.n} : region(cuts, r));
    capacities_.push_back(capacity(r, ranges_.back().width()));
  }
  allgatherv(step.comm, mine_, capacities_, gathered_);
}

Frame ShareGather::open(const Step& step, int r, std::size_t head) const {
  FrameSpec spec = step.frame(ranges_[static_cast<std::size_t>(r)]);
  if (head > 0) spec.tag = tag_behind(message(r).first(head), step.tag);
  return expect_frame(message(r).subspan(head), spec, r);
}

void ShareGather::decode(const Step& step, SparseVector& out) const {
  for (int r = 0; r < step.P(); ++r) decode_frame(open(step, r), out);
}

Cost ShareGather::cost(int P, double message, double entries, double values) {
  const double prefix = static_cast<double>(varint_bytes(static_cast<std::size_t>(std::ceil(message))));
  const double peers = P - 1;
  return sequential(ceil_log2(P), peers * (message + prefix), peers * entries, peers * values);
}

void allgather_sizes(Communicator& comm, Sizes mine, std::vector<Sizes>& all, Workspace& work) {
  all.resize(static_cast<std::size_t>(comm.size()));
  allgather(comm, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), work);
}

Cost sizes_cost(int P) { return sequential(ceil_log2(P), (P - 1.0) * kSizesBytes); }

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
