// SPDX-License-Identifier: Apache-2.0
// Cuts divide the index space [0, n) into P regions, one per rank: region r is [cuts[r],
// cuts[r+1]). Three ways to choose them, all in integers, so that all ranks compute the same ones:
//   equal width (SparCML, SparDL, TopKA2A); by vote (Ok-Topk 3.1.1: every rank cuts its own
//   selection into equal counts, the consensus is the mean of the votes); by load (ours: invert the
//   load that the owners observed).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "oktopk/base/state.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

using Cuts = std::vector<Index>;  // P + 1 borders, non-decreasing, 0 first, n last

inline Range region(const Cuts& cuts, int r) {
  return {cuts[static_cast<std::size_t>(r)], cuts[static_cast<std::size_t>(r) + 1]};
}

Cuts equal_cuts(Index n, int P);

// The P - 1 inner borders that would cut `selection` into equal counts. A selection too small to
// say anything (fewer than P entries) votes for equal width.
void vote_cuts(CooView selection, Index n, int P, std::span<std::uint64_t> votes);

// Consensus of P ranks' votes, summed: their mean. Sums are 64-bit, so P*n may exceed 2^32.
Cuts cuts_from_votes(std::span<const std::uint64_t> summed_votes, Index n, int P);

// New cuts under which each region would have had the same load, taking the load of each old
// region as spread evenly over it.
Cuts cuts_from_load(const Cuts& old, std::span<const std::uint64_t> load);

// From saved state; UsageError unless they are cuts of [0, n) into P regions.
Cuts take_cuts(StateReader& state, Index n, int P);

}  // namespace oktopk
