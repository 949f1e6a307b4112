// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/frames.h"

#include "oktopk/base/error.h"

namespace oktopk {

Frame expect_frame(std::span<const std::byte> bytes, std::uint32_t tag, Range range, int peer) {
  Frame frame;
  try {
    frame = open_frame(bytes);
  } catch (const CommError& error) {
    fail<CommError>("from rank ", peer, ": ", error.what());
  }
  if (frame.tag != tag)
    fail<CommError>("from rank ", peer, ": a frame of another step or problem (tag ", frame.tag,
                    ", expected ", tag, "): n, k, options or the number of steps differ");
  if (frame.range != range)
    fail<CommError>("from rank ", peer, ": a frame of [", frame.range.begin, ", ", frame.range.end,
                    "), expected [", range.begin, ", ", range.end, ")");
  return frame;
}

SparseVector* error_sink(Codec codec, SparseVector& returned) {
  return codec.lossless() ? nullptr : &returned;
}

void FrameGather::run(Communicator& comm, std::span<const std::byte> mine,
                      std::span<const std::size_t> capacities, Workspace& work) {
  allgatherv(comm, mine, capacities, gathered_, work);
}

void FrameGather::decode(int r, Range range, std::uint32_t tag, SparseVector& out) const {
  decode_frame(expect_frame(gathered_.of(r), tag, range, r), out);
}

void FrameGather::decode_all(const Cuts& cuts, std::uint32_t tag, SparseVector& out) const {
  for (int r = 0; r + 1 < static_cast<int>(cuts.size()); ++r) decode(r, region(cuts, r), tag, out);
}

void allgather_sizes(Communicator& comm, Sizes mine, std::vector<Sizes>& all, Workspace& work) {
  all.resize(static_cast<std::size_t>(comm.size()));
  allgather_checked(comm, std::as_bytes(std::span(&mine, 1)),
                    std::as_writable_bytes(std::span(all)), work);
}

}  // namespace oktopk
