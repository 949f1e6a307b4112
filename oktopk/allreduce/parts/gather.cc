// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/gather.h"

#include <cmath>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/base/varint.h"

namespace oktopk {

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

}  // namespace oktopk
