// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/reduce_scatter.h"

#include <algorithm>
#include <cstring>

#include "oktopk/allreduce/frames.h"
#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/sparse/sum.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

std::size_t slot(int i) { return static_cast<std::size_t>(i); }

int region_of(int rank, int block, int P) { return (rank + block) % P; }

std::uint32_t note_checksum(const BlockNote& note, std::uint32_t tag) {
  const std::uint64_t fields[] = {note.contributors, note.load,
                                  static_cast<std::uint64_t>(note.log_threshold)};
  return static_cast<std::uint32_t>(hash_bytes(std::as_bytes(std::span(fields)), tag));
}

// contributors u32, checksum u32, load u64, log_threshold i64 (docs/wire_format.md).
void put_note(const BlockNote& note, std::uint32_t tag, Bytes& out) {
  const std::size_t start = out.size();
  out.resize(start + kNoteBytes);
  const std::uint32_t check = note_checksum(note, tag);
  std::byte* to = out.data() + start;
  std::memcpy(to, &note.contributors, 4);
  std::memcpy(to + 4, &check, 4);
  std::memcpy(to + 8, &note.load, 8);
  std::memcpy(to + 16, &note.log_threshold, 8);
}

BlockNote take_note(std::span<const std::byte> bytes, std::uint32_t tag, int peer) {
  BlockNote note;
  std::uint32_t check = 0;
  if (bytes.size() < kNoteBytes)
    fail<CommError>("from rank ", peer, ": ", bytes.size(), " bytes where a block note was due");
  std::memcpy(&note.contributors, bytes.data(), 4);
  std::memcpy(&check, bytes.data() + 4, 4);
  std::memcpy(&note.load, bytes.data() + 8, 8);
  std::memcpy(&note.log_threshold, bytes.data() + 16, 8);
  if (check != note_checksum(note, tag))
    fail<CommError>("from rank ", peer, ": a block note of another step, or damaged");
  return note;
}

}  // namespace

void SparseReduceScatter::set_skips(const Skips& skips) {
  phases_ = circulant_phases(skips);
  P_ = skips.front();
  view_.resize(slot(P_));
  storage_.resize(slot(P_));
  note_.resize(slot(P_));
}

void SparseReduceScatter::run(Communicator& comm, CooView mine, const ReduceScatterPlan& plan,
                              SparseVector& returned, SparseVector& dropped) {
  OKTOPK_DCHECK(P_ == comm.size());
  const int rank = comm.rank();
  cut(mine, plan, rank);
  std::size_t contributors = 1;  // ranks whose entries a block may hold
  for (const Phase& phase : phases_) {
    if (plan.quota > 0)
      for (int d = phase.to_blocks; d < phase.from_blocks; ++d) prune(d, plan.quota, dropped);
    encode(phase, plan, rank, returned);
    post(phase, plan, rank, contributors);
    comm.exchange(sends_, recvs_);
    for (std::size_t hop = 0; hop < phase.hops.size(); ++hop) decode(hop, phase, plan, rank);
    merge(phase, plan, rank);
    contributors *= phase.hops.size() + 1;
  }
  if (plan.quota > 0) prune(0, plan.quota, dropped);
}

void SparseReduceScatter::cut(CooView mine, const ReduceScatterPlan& plan, int rank) {
  for (int d = 0; d < P_; ++d) {
    view_[slot(d)] = part(mine, oktopk::region(plan.cuts, region_of(rank, d, P_)));
    note_[slot(d)] = plan.note == nullptr ? BlockNote{} : *plan.note;
    note_[slot(d)].load = view_[slot(d)].size();
  }
}

void SparseReduceScatter::prune(int block, std::size_t quota, SparseVector& dropped) {
  CooView& view = view_[slot(block)];
  if (view.size() <= quota) return;
  merged_.clear();
  merged_.append(view);
  keep_largest(merged_, quota, &dropped);
  std::swap(storage_[slot(block)], merged_);
  view = storage_[slot(block)];
}

void SparseReduceScatter::encode(const Phase& phase, const ReduceScatterPlan& plan, int rank,
                                 SparseVector& returned) {
  outgoing_.resize(std::max(outgoing_.size(), phase.hops.size()));
  sends_.clear();
  for (std::size_t hop = 0; hop < phase.hops.size(); ++hop) {
    const Hop& h = phase.hops[hop];
    Bytes& out = outgoing_[hop];
    out.clear();
    for (int d = h.first; d < h.first + h.count; ++d) {
      if (plan.note != nullptr) put_note(note_[slot(d)], plan.tag, out);
      const Range range = oktopk::region(plan.cuts, region_of(rank, d, P_));
      encode_frame({plan.codec, range, plan.tag}, view_[slot(d)], out,
                   error_sink(plan.codec, returned));
    }
    sends_.push_back({region_of(rank, h.shift, P_), out});
  }
}

void SparseReduceScatter::post(const Phase& phase, const ReduceScatterPlan& plan, int rank,
                               std::size_t contributors) {
  incoming_.resize(std::max(incoming_.size(), phase.hops.size()));
  recvs_.clear();
  for (std::size_t hop = 0; hop < phase.hops.size(); ++hop) {
    const Hop& h = phase.hops[hop];
    std::size_t width = 0;
    for (int d = 0; d < h.count; ++d)
      width += oktopk::region(plan.cuts, region_of(rank, d, P_)).width();
    const std::size_t most =
        plan.quota > 0 ? plan.quota * slot(h.count) : plan.limit * contributors;
    const std::size_t notes = plan.note == nullptr ? 0 : kNoteBytes * slot(h.count);
    incoming_[hop].resize(notes +
                          max_frame_bytes(plan.codec, std::min(most, width), width, slot(h.count)));
    recvs_.push_back({region_of(rank, P_ - h.shift, P_), incoming_[hop]});
  }
}

void SparseReduceScatter::decode(std::size_t hop, const Phase& phase, const ReduceScatterPlan& plan,
                                 int rank) {
  const int count = phase.hops[hop].count;
  const Recv& recv = recvs_[hop];
  std::span<const std::byte> bytes = recv.buffer.first(recv.size);
  arrived_.resize(std::max(arrived_.size(), phase.hops.size()));
  arrived_[hop].resize(std::max(arrived_[hop].size(), slot(count)));
  for (int d = 0; d < count; ++d) {
    if (plan.note != nullptr) {
      const BlockNote note = take_note(bytes, plan.tag, recv.peer);
      bytes = bytes.subspan(kNoteBytes);
      note_[slot(d)].contributors += note.contributors;
      note_[slot(d)].load += note.load;
      note_[slot(d)].log_threshold += note.log_threshold;
    }
    const Range range = oktopk::region(plan.cuts, region_of(rank, d, P_));
    const Frame frame = expect_frame(bytes, plan.tag, range, recv.peer);
    arrived_[hop][slot(d)].clear();
    decode_frame(frame, arrived_[hop][slot(d)]);
    bytes = bytes.subspan(frame.bytes());
  }
  if (!bytes.empty())
    fail<CommError>("from rank ", recv.peer, ": ", bytes.size(), " bytes after the last frame");
}

void SparseReduceScatter::merge(const Phase& phase, const ReduceScatterPlan& plan, int rank) {
  for (int d = 0; d < phase.to_blocks; ++d) {
    parts_.assign(1, view_[slot(d)]);
    for (std::size_t hop = 0; hop < phase.hops.size(); ++hop)
      if (d < phase.hops[hop].count) parts_.push_back(arrived_[hop][slot(d)]);
    sum(parts_, oktopk::region(plan.cuts, region_of(rank, d, P_)), merged_);
    std::swap(storage_[slot(d)], merged_);
    view_[slot(d)] = storage_[slot(d)];
  }
}

Cost SparseReduceScatter::predict_block(double blocks, const Problem& problem, Codec codec,
                                        bool notes, double quota) {
  const double P = problem.P;
  double entries = problem.union_of(P / blocks) / P;
  if (quota > 0) entries = std::min(entries, quota);
  const double bytes = kFrameHeaderBytes + (notes ? kNoteBytes : 0) +
                       expected_payload_bytes(codec, entries, problem.n / P);
  return {.bytes = bytes, .entries = entries};
}

Cost SparseReduceScatter::predict(const Skips& skips, const Problem& problem, Codec codec,
                                  bool notes, double quota) {
  Cost cost;
  for (const Phase& phase : circulant_phases(skips)) {
    const Cost block = predict_block(phase.from_blocks, problem, codec, notes, quota);
    const double blocks = phase.from_blocks - phase.to_blocks;
    // Those that stay at home are merged, too, and a quota looks at what came of it.
    const double merged = quota > 0 ? phase.from_blocks + 2 * phase.to_blocks : phase.from_blocks;
    cost += concurrent(static_cast<double>(phase.hops.size()), blocks * block.bytes,
                       merged * block.entries);
  }
  return cost;
}

}  // namespace oktopk
