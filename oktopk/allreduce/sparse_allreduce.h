// SPDX-License-Identifier: Apache-2.0
// Just the collective: one sparse allreduce with no state before or after it. For a stream of steps
// a Reducer is better: it reuses thresholds, cuts and buffers, and keeps what was not applied.
#pragma once

#include <string>

#include "oktopk/allreduce/presets.h"

namespace oktopk {

// Collective. The k largest entries of the sum of all ranks' selections (as the preset defines
// them), equal on all ranks, in Outcome::update. What was not applied is the caller's: `shared`
// says which of its entries were; rules that prune on the way also give `returned` and `dropped`.
// REQUIRES: selection canonical, at most 2k entries. Without owner memory: circulant keeps the
// paper's rule here.
Outcome sparse_allreduce(Communicator& comm, CooView selection, Index n, std::size_t k,
                         const std::string& preset = "circulant", AllreduceOptions options = {});

}  // namespace oktopk
