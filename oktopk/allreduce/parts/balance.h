// SPDX-License-Identifier: Apache-2.0
// Three ways to keep the ranks' work even. Integers that all ranks share decide, so they decide alike.
//   * vote_on_cuts: cuts that give every rank's selection about equal counts (paper section 3.1.1).
//   * Balance: Ok-Topk's data balancing (paper section 3.1.2). The ranks hold consecutive, unequal pieces of one sorted
//     vector and re-slice it in rank order into equal pieces. Only ranks whose old and new pieces overlap talk to each
//     other. COST: at most P - 1 messages, 2k(P-1)/P words, plus frames.
//   * RecutRule: when circulant moves its cuts. COST: O(P) per step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "oktopk/allreduce/parts/gather.h"
#include "oktopk/base/state.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/sparse/cuts.h"

namespace oktopk {

// Collective: the mean of the ranks' votes.
Cuts vote_on_cuts(const Allreduce::Step& step, Workspace& work);
Cost vote_cost(int P);

class Balance {
 public:
  // Whether the largest piece exceeds `trigger` times the mean.
  static bool is_due(std::span<const Sizes> sizes, double trigger);

  // Replaces `piece` by this rank's equal share, and sizes[r].entries, the piece of every rank, likewise. Values travel
  // unrounded. REQUIRES: the range of spec covers all pieces.
  void run(Communicator& comm, const FrameSpec& spec, std::span<Sizes> sizes, SparseVector& piece);

 private:
  std::vector<Bytes> outgoing_;
  std::vector<Bytes> incoming_;
  std::vector<Send> sends_;
  std::vector<Recv> recvs_;
  SparseVector balanced_;
};

// Recuts are due when the load of the regions (entries that arrived for them) is uneven beyond noise, and not soon
// after the last recut. Owners give their memory up with their region, so a recut that does not help is avoided:
//   * The load of a single index cannot be divided: its region does not count.
//   * After a recut that brought the largest load neither down nor into a narrower region, the next one waits twice as
//     long, up to kLongestPause.
class RecutRule {
 public:
  static constexpr std::uint64_t kPause = 16;  // steps between two recuts, at least
  static constexpr std::uint64_t kLongestPause = 256;

  // To be asked once in every step, with the load of each region.
  bool is_due(std::uint64_t step, const Cuts& cuts, std::span<const std::uint64_t> load);

  void save(StateWriter& state) const;
  void load(StateReader& state);

 private:
  std::uint64_t last_ = 0;  // step of the last recut
  std::uint64_t pause_ = kPause;
  // Before the last recut: the largest load in 1/1000 of the mean (0: no recut yet), and the width of its region.
  std::uint64_t uneven_ = 0;
  std::uint64_t width_ = 0;
};

}  // namespace oktopk
