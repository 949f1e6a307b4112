// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/reduce_scatter.h"

#include <algorithm>
#include <cmath>

#include "oktopk/base/error.h"
#include "oktopk/select/selector.h"
#include "oktopk/sparse/sum.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

std::size_t slot(int i) { return static_cast<std::size_t>(i); }

}  // namespace

void SparseReduceScatter::set_skips(const Skips& skips) {
  phases_ = circulant_phases(skips);
  const std::size_t P = slot(skips.front());
  view_.resize(P);
  storage_.resize(P);
  tally_.resize(P);
}

const Cuts& SparseReduceScatter::equal_regions(const Step& step, Skips (*skips)(int P)) {
  if (equal_cuts_.empty()) {
    equal_cuts_ = equal_cuts(step.n, step.P());
    set_skips(skips(step.P()));
  }
  return equal_cuts_;
}

void SparseReduceScatter::run(const Step& step, const Cuts& cuts, const ReduceScatterOptions& options, Outcome& out) {
  OKTOPK_DCHECK(view_.size() == slot(step.P()));
  const Run run{step, cuts, options, out};
  cut(run);
  std::size_t contributors = 1;  // ranks whose entries a block may hold
  for (const Phase& phase : phases_) {
    for (int d = phase.to_blocks; d < phase.from_blocks; ++d) prune(run, d);
    encode(run, phase);
    post(run, phase, contributors);
    exchange(run, phase);
    merge(run, phase);
    contributors *= phase.hops.size() + 1;
  }
  prune(run, 0);
}

void SparseReduceScatter::cut(const Run& run) {
  const CooView mine = run.step.mine.selection;
  for (int d = 0; d < run.step.P(); ++d) {
    view_[slot(d)] = part(mine, run.range(d));
    tally_[slot(d)] = run.options.tally == nullptr ? BlockTally{} : *run.options.tally;
    tally_[slot(d)].load = view_[slot(d)].size();
  }
}

void SparseReduceScatter::prune(const Run& run, int block) {
  CooView& view = view_[slot(block)];
  if (run.options.quota == 0 || view.size() <= run.options.quota) return;
  merged_.clear();
  merged_.append(view);
  keep_largest(merged_, run.options.quota, &run.out.dropped);
  std::swap(storage_[slot(block)], merged_);
  view = storage_[slot(block)];
}

// The frame of a block stands behind the block's tally.
FrameSpec SparseReduceScatter::Run::frame(int block, std::span<const std::byte> tally) const {
  FrameSpec spec = step.frame(range(block));
  if (options.tally != nullptr) spec.tag = tag_behind(tally, step.tag);
  return spec;
}

// Rotation of destinations: in hop j every rank sends to the same distance, so no rank is hit by all at once.
void SparseReduceScatter::encode(const Run& run, const Phase& phase) {
  outgoing_.resize(std::max(outgoing_.size(), phase.hops.size()));
  sends_.clear();
  for (std::size_t hop = 0; hop < phase.hops.size(); ++hop) {
    const Hop& h = phase.hops[hop];
    Bytes& message = outgoing_[hop];
    message.clear();
    for (int d = h.first; d < h.first + h.count; ++d) {
      const std::size_t start = message.size();
      if (run.options.tally != nullptr) put(tally_[slot(d)], message);
      encode_frame(run.frame(d, std::span(message).subspan(start)), view_[slot(d)], message,
                   error_sink(run.step.codec, run.out.returned));
    }
    sends_.push_back({run.region_of(h.shift), message});
  }
}

void SparseReduceScatter::post(const Run& run, const Phase& phase, std::size_t contributors) {
  const std::size_t hops = phase.hops.size();
  const std::size_t buffers = run.options.bucket == 0 ? hops : std::min(hops, 2 * run.options.bucket);
  incoming_.resize(std::max(incoming_.size(), buffers));
  recvs_.clear();
  for (std::size_t hop = 0; hop < hops; ++hop) {
    const Hop& h = phase.hops[hop];
    const std::size_t blocks = slot(h.count);
    std::size_t width = 0;
    for (int d = 0; d < h.count; ++d) width += run.range(d).width();
    const std::size_t most =
        run.options.quota > 0 ? run.options.quota * blocks : max_selection(run.step.k) * contributors;
    const std::size_t tallies = run.options.tally == nullptr ? 0 : BlockTally::kMaxBytes * blocks;
    Bytes& buffer = incoming_[hop % buffers];
    buffer.resize(tallies + max_frame_bytes(run.step.codec, std::min(most, width), width, blocks));
    recvs_.push_back({run.region_of(run.step.P() - h.shift), buffer});
  }
}

void SparseReduceScatter::exchange(const Run& run, const Phase& phase) {
  const std::size_t hops = phase.hops.size();
  const std::size_t bucket = run.options.bucket == 0 ? hops : run.options.bucket;
  std::size_t decoded = 0;
  for (std::size_t first = 0; first < hops; first += bucket) {
    const std::size_t count = std::min(bucket, hops - first);
    Pending pending =
        run.step.comm.start(std::span(sends_).subspan(first, count), std::span(recvs_).subspan(first, count));
    for (; decoded < first; ++decoded) decode(run, phase, decoded);
    pending.wait();
  }
  for (; decoded < hops; ++decoded) decode(run, phase, decoded);
}

void SparseReduceScatter::decode(const Run& run, const Phase& phase, std::size_t hop) {
  const int count = phase.hops[hop].count;
  const Recv& recv = recvs_[hop];
  std::span<const std::byte> bytes = recv.buffer.first(recv.size);
  arrived_.resize(std::max(arrived_.size(), phase.hops.size()));
  std::vector<SparseVector>& blocks = arrived_[hop];
  blocks.resize(std::max(blocks.size(), slot(count)));
  for (int d = 0; d < count; ++d) {
    const std::span<const std::byte> start = bytes;
    const BlockTally tally = run.options.tally == nullptr ? BlockTally{} : take_block_tally(bytes, recv.peer);
    const Frame frame = expect_frame(bytes, run.frame(d, start.first(start.size() - bytes.size())), recv.peer);
    tally_[slot(d)] += tally;
    blocks[slot(d)].clear();
    decode_frame(frame, blocks[slot(d)]);
    bytes = bytes.subspan(frame.bytes());
  }
  if (!bytes.empty()) fail<CommError>("from rank ", recv.peer, ": ", bytes.size(), " bytes after the last frame");
}

void SparseReduceScatter::merge(const Run& run, const Phase& phase) {
  for (int d = 0; d < phase.to_blocks; ++d) {
    parts_.assign(1, view_[slot(d)]);
    for (std::size_t hop = 0; hop < phase.hops.size(); ++hop)
      if (d < phase.hops[hop].count) parts_.push_back(arrived_[hop][slot(d)]);
    sum(parts_, run.range(d), merged_);
    std::swap(storage_[slot(d)], merged_);
    view_[slot(d)] = storage_[slot(d)];
  }
}

Cost SparseReduceScatter::predict_block(double blocks, const Problem& problem, Codec codec, bool tallies,
                                        double quota) {
  const double P = problem.P;
  double entries = problem.union_of(P / blocks) / P;
  if (quota > 0) entries = std::min(entries, quota);
  double bytes = expected_frame_bytes(codec, entries, problem.n / P);
  if (tallies) {
    // Thresholds are mostly within ten octaves of 1, and always within 128.
    const auto contributors = static_cast<std::uint32_t>(std::ceil(P / blocks));
    const std::int64_t octaves = (problem.disjoint ? 128 : 10) * std::int64_t{contributors};
    const auto load = static_cast<std::uint64_t>(std::ceil(problem.k / blocks));
    bytes += tally_bytes(BlockTally{contributors, load, -octaves * BlockTally::kOctave});
  }
  return {.bytes = bytes, .entries = entries};
}

Cost SparseReduceScatter::predict(const Skips& skips, const Problem& problem, Codec codec,
                                  const ReduceScatterOptions& options) {
  Cost cost;
  const auto quota = static_cast<double>(options.quota);
  for (const Phase& phase : circulant_phases(skips)) {
    const Cost block = predict_block(phase.from_blocks, problem, codec, options.tally != nullptr, quota);
    const double blocks = phase.from_blocks - phase.to_blocks;
    // Blocks that stay at home are merged, too, and a quota visits the merged ones once more.
    const double merged = quota > 0 ? phase.from_blocks + 2 * phase.to_blocks : phase.from_blocks;
    cost += concurrent(static_cast<double>(phase.hops.size()), blocks * block.bytes, merged * block.entries,
                       static_cast<double>(options.bucket));
  }
  return cost;
}

}  // namespace oktopk
