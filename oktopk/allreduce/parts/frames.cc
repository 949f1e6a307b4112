// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/frames.h"

#include <cmath>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"

namespace oktopk {

Frame expect_frame(std::span<const std::byte> bytes, const FrameSpec& spec, int peer) {
  try {
    return open_frame(bytes, spec);
  } catch (const CommError& error) {
    fail<CommError>("from rank ", peer, ": ", error.what());
  }
}

std::uint32_t tag_behind(std::span<const std::byte> notes, std::uint32_t tag) {
  return static_cast<std::uint32_t>(hash_bytes(notes, tag));
}

SparseVector* error_sink(Codec codec, SparseVector& returned) { return codec.lossless() ? nullptr : &returned; }

void FrameGather::run(Communicator& comm, std::span<const std::byte> mine, std::span<const std::size_t> capacities,
                      Workspace& /*work*/) {
  allgatherv(comm, mine, capacities, gathered_);
}

void FrameGather::decode(int r, const FrameSpec& spec, SparseVector& out) const {
  decode_frame(expect_frame(gathered_.of(r), spec, r), out);
}

void FrameGather::decode_all(const Cuts& cuts, Codec codec, std::uint32_t tag, SparseVector& out) const {
  for (int r = 0; r + 1 < static_cast<int>(cuts.size()); ++r) decode(r, {codec, region(cuts, r), tag}, out);
}

double gathered_bytes(double block) {
  return block + static_cast<double>(prefix_bytes(static_cast<std::size_t>(std::ceil(block))));
}

void allgather_sizes(Communicator& comm, Sizes mine, std::vector<Sizes>& all, Workspace& work) {
  all.resize(static_cast<std::size_t>(comm.size()));
  allgather_checked(comm, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), work);
}

}  // namespace oktopk
