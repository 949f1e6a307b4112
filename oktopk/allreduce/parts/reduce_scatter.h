// SPDX-License-Identifier: Apache-2.0
// The sparse reduce-scatter of circulant, oktopk, spardl, topkdsa and topka2a. Every rank's selection is cut into P
// blocks; block d belongs to region (rank + d) mod P. After the phases of a skip list (comm/skips.h) each rank holds
// the sum of its own region. Direct skips make it Ok-Topk's split-and-reduce, a quota makes it SparDL's
// Spar-Reduce-Scatter. Sums are taken in a fixed order, own block first and then by hop, so results do not depend on
// the transport.
//
// COST: message_count(skips) messages; (S - T)/P of the union of P/S selections in phase (S, T).
#pragma once

#include <span>
#include <vector>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/parts/gather.h"
#include "oktopk/codec/frame.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/comm/skips.h"
#include "oktopk/sparse/cuts.h"
#include "oktopk/tune/cost.h"

namespace oktopk {

struct ReduceScatterOptions {
  std::size_t quota = 0;              // entries that a block may hold when sent; 0: any number
  const BlockTally* tally = nullptr;  // the contribution of this rank; nullptr: blocks carry no tallies
  // Messages in flight at a time; 0: all of a phase. One bucket is decoded while the next is in flight, so two buckets
  // of receive buffers are enough for any P.
  std::size_t bucket = 0;
};

class SparseReduceScatter {
 public:
  using Step = Allreduce::Step;

  void set_skips(const Skips& skips);
  // Regions of equal width, for all steps. The first call also sets the skips for P ranks.
  const Cuts& equal_regions(const Step& step, Skips (*skips)(int P));

  // Reduces all ranks' step.mine.selection. Rounding errors go to out.returned, entries pruned by the quota to
  // out.dropped.
  void run(const Step& step, const Cuts& cuts, const ReduceScatterOptions& options, Outcome& out);

  CooView sums() const { return view_[0]; }              // of this rank's region
  const BlockTally& tally() const { return tally_[0]; }  // summed over the ranks

  // Bytes and entries of one block while each rank holds `blocks` of them.
  static Cost predict_block(double blocks, const Problem& problem, Codec codec, bool tallies, double quota = 0);
  // The part of predict() for the reduce-scatter, with uniformly spread blocks.
  static Cost predict(const Skips& skips, const Problem& problem, Codec codec, const ReduceScatterOptions& options);

 private:
  struct Run {
    const Step& step;
    const Cuts& cuts;
    const ReduceScatterOptions& options;
    Outcome& out;
    int region_of(int block) const { return (step.comm.rank() + block) % step.P(); }
    Range range(int block) const { return region(cuts, region_of(block)); }
    FrameSpec frame(int block, std::span<const std::byte> tally) const;
  };
  void cut(const Run& run);
  void prune(const Run& run, int block);
  void encode(const Run& run, const Phase& phase);
  void post(const Run& run, const Phase& phase, std::size_t contributors);
  void exchange(const Run& run, const Phase& phase);
  void decode(const Run& run, const Phase& phase, std::size_t hop);
  void merge(const Run& run, const Phase& phase);

  std::vector<Phase> phases_;
  Cuts equal_cuts_;
  std::vector<CooView> view_;          // the blocks, by distance from this rank
  std::vector<SparseVector> storage_;  // of the blocks that were merged or pruned
  std::vector<BlockTally> tally_;
  std::vector<Bytes> outgoing_;  // one message per hop
  std::vector<Bytes> incoming_;
  std::vector<std::vector<SparseVector>> arrived_;  // [hop][block]
  std::vector<CooView> parts_;
  SparseVector merged_;
  std::vector<Send> sends_;
  std::vector<Recv> recvs_;
};

}  // namespace oktopk
