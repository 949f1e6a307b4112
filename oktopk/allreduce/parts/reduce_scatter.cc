// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/reduce_scatter.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "oktopk/allreduce/parts/frames.h"
#include "oktopk/base/error.h"
#include "oktopk/sparse/sum.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

std::size_t slot(int i) { return static_cast<std::size_t>(i); }

int region_of(int rank, int block, int P) { return (rank + block) % P; }

// Sums beyond this come from no ranks' thresholds; P of those below cannot overflow.
constexpr std::int64_t kMostLog = std::int64_t{1} << 44;

// contributors, load, log_threshold (docs/wire_format.md).
void put_note(const BlockNote& note, Bytes& out) {
  append_varint(note.contributors, out);
  append_varint(note.load, out);
  append_varint(zigzag(note.log_threshold), out);
}

// Cuts the note off. Only the frame behind it tells whether it is undamaged.
BlockNote take_note(std::span<const std::byte>& bytes, int peer) {
  std::uint64_t contributors = 0;
  std::uint64_t load = 0;
  std::uint64_t log = 0;
  if (!take_varint(bytes, contributors) || !take_varint(bytes, load) || !take_varint(bytes, log) ||
      contributors > std::numeric_limits<std::uint32_t>::max() || log > zigzag(kMostLog))
    fail<CommError>("from rank ", peer, ": a block note was due, ", bytes.size(), " bytes are something else");
  return {static_cast<std::uint32_t>(contributors), load, unzigzag(log)};
}

}  // namespace

std::size_t note_bytes(const BlockNote& note) {
  return varint_bytes(note.contributors) + varint_bytes(note.load) + varint_bytes(zigzag(note.log_threshold));
}

void SparseReduceScatter::set_skips(const Skips& skips) {
  phases_ = circulant_phases(skips);
  P_ = skips.front();
  view_.resize(slot(P_));
  storage_.resize(slot(P_));
  note_.resize(slot(P_));
}

void SparseReduceScatter::run(Communicator& comm, CooView mine, const ReduceScatterPlan& plan, SparseVector& returned,
                              SparseVector& dropped) {
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

// The frame of block d stands behind the block's note: its checksum covers both.
FrameSpec SparseReduceScatter::frame_spec(const ReduceScatterPlan& plan, int rank, int block,
                                          std::span<const std::byte> note) const {
  return {plan.codec, oktopk::region(plan.cuts, region_of(rank, block, P_)),
          plan.note == nullptr ? plan.tag : tag_behind(note, plan.tag)};
}

void SparseReduceScatter::encode(const Phase& phase, const ReduceScatterPlan& plan, int rank, SparseVector& returned) {
  outgoing_.resize(std::max(outgoing_.size(), phase.hops.size()));
  sends_.clear();
  for (std::size_t hop = 0; hop < phase.hops.size(); ++hop) {
    const Hop& h = phase.hops[hop];
    Bytes& out = outgoing_[hop];
    out.clear();
    for (int d = h.first; d < h.first + h.count; ++d) {
      const std::size_t start = out.size();
      if (plan.note != nullptr) put_note(note_[slot(d)], out);
      encode_frame(frame_spec(plan, rank, d, std::span(out).subspan(start)), view_[slot(d)], out,
                   error_sink(plan.codec, returned));
    }
    sends_.push_back({region_of(rank, h.shift, P_), out});
  }
}

void SparseReduceScatter::post(const Phase& phase, const ReduceScatterPlan& plan, int rank, std::size_t contributors) {
  incoming_.resize(std::max(incoming_.size(), phase.hops.size()));
  recvs_.clear();
  for (std::size_t hop = 0; hop < phase.hops.size(); ++hop) {
    const Hop& h = phase.hops[hop];
    std::size_t width = 0;
    for (int d = 0; d < h.count; ++d) width += oktopk::region(plan.cuts, region_of(rank, d, P_)).width();
    const std::size_t most = plan.quota > 0 ? plan.quota * slot(h.count) : plan.limit * contributors;
    const std::size_t notes = plan.note == nullptr ? 0 : kMaxNoteBytes * slot(h.count);
    incoming_[hop].resize(notes + max_frame_bytes(plan.codec, std::min(most, width), width, slot(h.count)));
    recvs_.push_back({region_of(rank, P_ - h.shift, P_), incoming_[hop]});
  }
}

void SparseReduceScatter::decode(std::size_t hop, const Phase& phase, const ReduceScatterPlan& plan, int rank) {
  const int count = phase.hops[hop].count;
  const Recv& recv = recvs_[hop];
  std::span<const std::byte> bytes = recv.buffer.first(recv.size);
  arrived_.resize(std::max(arrived_.size(), phase.hops.size()));
  arrived_[hop].resize(std::max(arrived_[hop].size(), slot(count)));
  for (int d = 0; d < count; ++d) {
    const std::span<const std::byte> start = bytes;
    const BlockNote note = plan.note == nullptr ? BlockNote{} : take_note(bytes, recv.peer);
    const std::span<const std::byte> noted = start.first(start.size() - bytes.size());
    const Frame frame = expect_frame(bytes, frame_spec(plan, rank, d, noted), recv.peer);
    note_[slot(d)].contributors += note.contributors;
    note_[slot(d)].load += note.load;
    note_[slot(d)].log_threshold += note.log_threshold;
    arrived_[hop][slot(d)].clear();
    decode_frame(frame, arrived_[hop][slot(d)]);
    bytes = bytes.subspan(frame.bytes());
  }
  if (!bytes.empty()) fail<CommError>("from rank ", recv.peer, ": ", bytes.size(), " bytes after the last frame");
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

Cost SparseReduceScatter::predict_block(double blocks, const Problem& problem, Codec codec, bool notes, double quota) {
  const double P = problem.P;
  double entries = problem.union_of(P / blocks) / P;
  if (quota > 0) entries = std::min(entries, quota);
  double bytes = expected_frame_bytes(codec, entries, problem.n / P);
  if (notes) {
    // Thresholds are mostly within ten octaves of 1, and always within 128.
    const auto contributors = static_cast<std::uint32_t>(std::ceil(P / blocks));
    const std::int64_t octaves = (problem.disjoint ? 128 : 10) * std::int64_t{contributors};
    const auto load = static_cast<std::uint64_t>(std::ceil(problem.k / blocks));
    bytes += static_cast<double>(note_bytes({contributors, load, -octaves * BlockNote::kOctave}));
  }
  return {.bytes = bytes, .entries = entries};
}

Cost SparseReduceScatter::predict(const Skips& skips, const Problem& problem, Codec codec, bool notes, double quota) {
  Cost cost;
  for (const Phase& phase : circulant_phases(skips)) {
    const Cost block = predict_block(phase.from_blocks, problem, codec, notes, quota);
    const double blocks = phase.from_blocks - phase.to_blocks;
    // Those that stay at home are merged, too, and a quota looks at what came of it.
    const double merged = quota > 0 ? phase.from_blocks + 2 * phase.to_blocks : phase.from_blocks;
    cost += concurrent(static_cast<double>(phase.hops.size()), blocks * block.bytes, merged * block.entries);
  }
  return cost;
}

}  // namespace oktopk
