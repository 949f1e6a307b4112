// SPDX-License-Identifier: Apache-2.0
// Frames that arrive from other ranks, the tallies in front of them, and the allgather of one share per rank with which
// the sparse algorithms end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/base/bytes.h"
#include "oktopk/base/varint.h"
#include "oktopk/codec/frame.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/sparse/cuts.h"
#include "oktopk/sparse/tail.h"
#include "oktopk/tune/cost.h"

namespace oktopk {

// Opens the frame at the start of the bytes from `peer`. Throws CommError that names the peer unless the frame is
// undamaged and has this spec.
Frame expect_frame(std::span<const std::byte> bytes, const FrameSpec& spec, int peer);

// The tag of a frame that stands behind `head` in the same message. The frame's checksum then covers the head, too.
std::uint32_t tag_behind(std::span<const std::byte> head, std::uint32_t tag);

// Where an encoder puts rounding errors; nullptr for a lossless codec.
SparseVector* error_sink(Codec codec, SparseVector& returned);

// Allgather of one share per rank: a frame, perhaps behind a head. Ranks forward shares unopened, and everyone decodes
// all of them, its own included, so that all ranks hold the same bits. COST: ceil(log2 P) messages, P - 1 shares.
class ShareGather {
 public:
  using Step = Allreduce::Step;

  // This rank's message, empty: the caller appends its share, then calls run().
  Bytes& begin();
  // The frame of rank r has region r of the cuts as its range; with empty cuts, all of [0, n). capacity(r, width of the
  // range): the most bytes that rank r's message may have, equal on all ranks.
  void run(const Step& step, const Cuts& cuts, const std::function<std::size_t(int, std::size_t)>& capacity);

  std::span<const std::byte> message(int r) const { return gathered_.of(r); }
  // Rank r's frame, behind a head of so many bytes.
  Frame open(const Step& step, int r, std::size_t head = 0) const;
  // Appends the entries of all shares, in rank order: canonical when the ranges are consecutive.
  void decode(const Step& step, SparseVector& out) const;

  // For messages of so many bytes, with so many entries or dense values.
  static Cost cost(int P, double message, double entries, double values = 0);

 private:
  Bytes mine_;
  std::vector<Range> ranges_;
  std::vector<std::size_t> capacities_;
  Gathered gathered_;
};

// Two counts of every rank, in rank order. COST: ceil(log2 P) messages, P - 1 blocks of kSizesBytes.
struct Sizes {
  std::uint64_t entries;
  std::uint64_t bytes;
};
inline constexpr std::size_t kSizesBytes = sizeof(Sizes) + kCheckBytes;
void allgather_sizes(Communicator& comm, Sizes mine, std::vector<Sizes>& all, Workspace& work);
Cost sizes_cost(int P);

// ---- Tallies: integers with which all ranks of circulant steer threshold and cuts alike. They travel as varints in
// front of a frame (docs/wire_format.md), whose checksum covers them (tag_behind): a few bytes, and no message.

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
