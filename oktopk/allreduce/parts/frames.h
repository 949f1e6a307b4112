// SPDX-License-Identifier: Apache-2.0
// Frames between ranks: what the algorithms share when they receive and gather encoded vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "oktopk/codec/frame.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/sparse/cuts.h"

namespace oktopk {

// Opens the frame at the start of what `peer` sent. Throws CommError that names the peer unless it
// is undamaged and of this step (tag), range and codec.
Frame expect_frame(std::span<const std::byte> bytes, const FrameSpec& spec, int peer);

// The tag of a frame that follows `notes` in the same message: with it the frame's checksum covers
// them, too, and they need none of their own.
std::uint32_t tag_behind(std::span<const std::byte> notes, std::uint32_t tag);

// Where encoders put rounding errors: nowhere, when there are none.
SparseVector* error_sink(Codec codec, SparseVector& returned);

// Allgather of one frame per rank, forwarded unopened and decoded by everyone, the owner included,
// so that all ranks hold the same bits. COST: ceil(log2 P) messages, P - 1 frames.
class FrameGather {
 public:
  // capacities[r]: the most bytes that rank r's frame may have, equal on all ranks.
  void run(Communicator& comm, std::span<const std::byte> mine, std::span<const std::size_t> capacities,
           Workspace& work);

  // Appends the entries of rank r's frame to out.
  void decode(int r, const FrameSpec& spec, SparseVector& out) const;
  // All of them, in rank order: canonical when the ranges are consecutive.
  void decode_all(const Cuts& cuts, Codec codec, std::uint32_t tag, SparseVector& out) const;

  std::span<const std::byte> of(int r) const { return gathered_.of(r); }

 private:
  Gathered gathered_;
};

// A block in allgatherv: with its size before it.
double gathered_bytes(double block);

// Every rank's share, in rank order. COST: ceil(log2 P) messages, P - 1 blocks of kSizesBytes.
struct Sizes {
  std::uint64_t entries;
  std::uint64_t bytes;
};
inline constexpr std::size_t kSizesBytes = sizeof(Sizes) + kCheckBytes;
void allgather_sizes(Communicator& comm, Sizes mine, std::vector<Sizes>& all, Workspace& work);

}  // namespace oktopk
