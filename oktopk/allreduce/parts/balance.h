// SPDX-License-Identifier: Apache-2.0
// Ok-Topk's data balancing (paper section 3.1.2): the ranks hold consecutive, unequal pieces of one
// sorted vector; re-slice it in rank order into equal pieces. Only ranks whose old and new pieces
// overlap talk to each other.
//
// COST: at most P - 1 messages, 2k(P-1)/P words, plus frames.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "oktopk/allreduce/parts/frames.h"
#include "oktopk/comm/communicator.h"

namespace oktopk {

class Balance {
 public:
  // Whether the largest piece exceeds `trigger` times the mean.
  static bool is_due(std::span<const Sizes> sizes, double trigger);

  // Replaces `piece` by this rank's equal share. sizes[r].entries: every rank's piece. Values
  // travel unrounded; spec's range covers all ranks' pieces.
  void run(Communicator& comm, std::span<const Sizes> sizes, const FrameSpec& spec, SparseVector& piece);

 private:
  std::vector<Bytes> outgoing_;
  std::vector<Bytes> incoming_;
  std::vector<Send> sends_;
  std::vector<Recv> recvs_;
  SparseVector balanced_;
};

}  // namespace oktopk
