// SPDX-License-Identifier: Apache-2.0
// Circulant sparse reduce-scatter: every rank's selection is cut into P blocks, block d belongs to
// region (rank + d) mod P, and after the phases of a skip list (comm/skips.h) each rank holds the
// sum of its own region. The one code path behind topkdsa, topka2a, spardl and circulant; direct
// skips make it Ok-Topk's split-and-reduce, a quota makes it SparDL's Spar-Reduce-Scatter.
//
// COST:
// message_count(skips) messages; (S - T)/P of the union of P/S selections in phase (S, T). Sums are
// taken in a fixed order, so results do not depend on the transport.
#pragma once

#include <cstdint>
#include <vector>

#include "oktopk/base/varint.h"
#include "oktopk/codec/frame.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/comm/skips.h"
#include "oktopk/sparse/cuts.h"
#include "oktopk/tune/cost.h"

namespace oktopk {

// Integers that travel with each block and are added like the data: at the end every owner has the
// sums over all ranks, at no extra message.
struct BlockNote {
  std::uint32_t contributors = 0;  // ranks with a non-empty selection
  std::uint64_t load = 0;          // their entries in this block, before merging
  std::int64_t log_threshold = 0;  // sum of their log2(threshold) in units of 1 / kOctave
  static constexpr std::int64_t kOctave = 1024;
};
// As three varints (docs/wire_format.md).
std::size_t note_bytes(const BlockNote& note);
inline constexpr std::size_t kMaxNoteBytes = 5 + 2 * kMaxVarintBytes;

struct ReduceScatterPlan {
  const Cuts& cuts;
  Codec codec;
  std::uint32_t tag = 0;
  std::size_t limit = 0;            // entries that a rank may bring at most
  std::size_t quota = 0;            // entries that a block may hold when sent; 0: any number
  const BlockNote* note = nullptr;  // what this rank contributes; nullptr: blocks carry no notes
};

class SparseReduceScatter {
 public:
  void set_skips(const Skips& skips);

  // Rounding errors go to `returned`, entries pruned by the quota to `dropped`.
  void run(Communicator& comm, CooView mine, const ReduceScatterPlan& plan, SparseVector& returned,
           SparseVector& dropped);

  CooView region() const { return view_[0]; }
  const BlockNote& note() const { return note_[0]; }

  // Bytes and entries of one block while each rank holds `blocks` of them.
  static Cost predict_block(double blocks, const Problem& problem, Codec codec, bool notes, double quota = 0);
  // The reduce-scatter's share of predict(): uniformly spread blocks; a quota caps their entries.
  static Cost predict(const Skips& skips, const Problem& problem, Codec codec, bool notes, double quota = 0);

 private:
  void cut(CooView mine, const ReduceScatterPlan& plan, int rank);
  FrameSpec frame_spec(const ReduceScatterPlan& plan, int rank, int block, std::span<const std::byte> note) const;
  void prune(int block, std::size_t quota, SparseVector& dropped);
  void encode(const Phase& phase, const ReduceScatterPlan& plan, int rank, SparseVector& returned);
  void post(const Phase& phase, const ReduceScatterPlan& plan, int rank, std::size_t contributors);
  void decode(std::size_t hop, const Phase& phase, const ReduceScatterPlan& plan, int rank);
  void merge(const Phase& phase, const ReduceScatterPlan& plan, int rank);

  int P_ = 0;
  std::vector<Phase> phases_;
  std::vector<CooView> view_;          // the blocks, by distance from this rank
  std::vector<SparseVector> storage_;  // of those that were merged or pruned
  std::vector<BlockNote> note_;
  std::vector<Bytes> outgoing_;  // one message per hop
  std::vector<Bytes> incoming_;
  std::vector<std::vector<SparseVector>> arrived_;  // [hop][block]
  std::vector<CooView> parts_;
  SparseVector merged_;
  std::vector<Send> sends_;
  std::vector<Recv> recvs_;
};

}  // namespace oktopk
