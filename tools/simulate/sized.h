// SPDX-License-Identifier: Apache-2.0
// What a preset would send, without what it would send: the messages of one steady step, with the
// same peers, rounds and sizes (frame headers, size prefixes and checks included), all cut from one
// buffer whose content means nothing. For presets whose payload would not fit when thousands of
// ranks share one memory; ranks that run one at a time may share the buffer, too.
//
//   dense            reduce-scatter and allgather of regions, halving or ring
//   topka            allgatherv of one frame of k entries per rank
//   gaussiank        the same, sizes first
//   topkdsa          direct split (of 16 peers at a time), sizes, allgatherv of each region, sparse
//                    or dense
//   topka2a          the same split, allgatherv of dense regions
//   oktopk_refresh   oktopk's step that re-evaluates cuts and threshold: votes, direct split in
//                    buckets, sizes, allgatherv of the union
//
// Sizes are exact with coo32+fp32; with codings whose size depends on the data they are expected
// ones, equal on all ranks. Memory: O(P) numbers per rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/comm/skips.h"
#include "oktopk/sparse/coo.h"
#include "oktopk/sparse/cuts.h"

namespace oktopk {

// One rank's view of a step. Borrowed while a SizedAllreduce is made, not longer.
struct SizedProblem {
  Index n = 0;
  std::size_t k = 0;  // entries that each rank selects
  int P = 1;
  Cuts cuts = {};                                   // of oktopk_refresh: the voted ones; empty: regions of equal width
  std::span<const std::size_t> region_unions = {};  // topkdsa, oktopk_refresh: of a survey with them
  std::span<const std::size_t> blocks = {};         // all that split: this rank's entries in each region
};

// Entries of a rank's selection in each region: SizedProblem::blocks.
std::vector<std::size_t> block_sizes(CooView selection, const Cuts& cuts);

class SizedAllreduce {
 public:
  // UsageError when the preset is none of the above or the problem lacks what it needs.
  SizedAllreduce(std::string_view preset, const AllreduceOptions& options, const SizedProblem& problem);

  // Collective, like Allreduce::run: all ranks with the same preset, options and problem, each with
  // its own blocks. REQUIRES: at least shared_bytes() bytes.
  void run(Communicator& comm, std::span<std::byte> shared);

  // No message of any rank is larger.
  std::size_t shared_bytes() const { return shared_bytes_; }

 private:
  enum class Pattern { scatter, gather, ring_scatter, ring_gather, split, small_reduce };
  struct Stage {
    Pattern pattern;
    std::vector<std::uint64_t> before;       // bytes of the regions left of each one, P + 1
    std::vector<std::size_t> capacity = {};  // split: the most that may come for each region
    // Bytes of regions first, first + 1, ... (mod P).
    std::size_t bytes(int first, int count) const;
  };
  struct Build;  // the presets, as stages

  void halving(Communicator& comm, const Stage& stage, std::span<std::byte> shared);
  static void ring(Communicator& comm, const Stage& stage, std::span<std::byte> shared);
  void split(Communicator& comm, const Stage& stage, std::span<std::byte> shared);
  void small_reduce(Communicator& comm, const Stage& stage, std::span<std::byte> shared);
  std::size_t largest_message(const Stage& stage) const;

  int P_;
  std::size_t bucket_;  // messages at once in a split
  std::vector<Phase> phases_;
  std::vector<Stage> stages_;
  std::size_t shared_bytes_ = 0;
};

}  // namespace oktopk
