// SPDX-License-Identifier: Apache-2.0
// Frames that arrive from other ranks, and the allgather of one share per rank with which the sparse algorithms end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/codec/frame.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/sparse/cuts.h"
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

}  // namespace oktopk
