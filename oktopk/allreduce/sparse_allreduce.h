// SPDX-License-Identifier: Apache-2.0
// Just the collective: one sparse allreduce without state before or after it. For a stream of steps a Reducer is
// better: it reuses thresholds, cuts and buffers, and keeps what was not applied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "oktopk/allreduce/options.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

// The sum over the ranks is not finite, although every rank's values are. All ranks throw the same text: they are in
// step, and the communicator lives.
struct SumOverflow : UsageError {
  using UsageError::UsageError;
};

// The result of a step. Mass: the sum over ranks of what they brought, plus what owners remembered, equals update +
// what residual rules and owners keep.
struct Outcome {
  SparseVector update;                  // the global sum, bitwise equal on all ranks
  Uninitialised<float> dense_update;    // dense algorithms: the sum of all; update is then empty
  SparseVector shared;                  // sender keeps: entries of this rank's selection that the update holds
  SparseVector returned;                // for this rank's residual: its rounding errors, released memory
  Uninitialised<float> dense_returned;  // dense algorithms: the same, all n; empty: nothing returns
  SparseVector dropped;                 // partial sums that this rank pruned
  bool refreshed = false;               // this step re-evaluated thresholds or cuts, by extra messages
  // circulant: entries of all ranks in this rank's region, and entries of their union.
  std::uint64_t arrived = 0;
  std::uint64_t merged = 0;
};

// Owner memory: the sums of its region that an owner keeps between steps. Empty with other residual rules.
struct OwnerMemory {
  Range region;
  std::span<const float> values;
};

// Collective. Outcome::update gets the k largest entries of the sum of all ranks' selections (as the preset defines
// them), equal on all ranks. The caller keeps what was not applied: `shared` holds the applied entries of its own;
// rules that prune on the way also give `returned` and `dropped`. There is no owner memory: circulant uses sender
// keeps. REQUIRES: selection canonical, at most 2k entries.
Outcome sparse_allreduce(Communicator& comm, CooView selection, Index n, std::size_t k,
                         const std::string& preset = "circulant", AllreduceOptions options = {});

}  // namespace oktopk
