// SPDX-License-Identifier: Apache-2.0
// Sums of canonical sparse vectors. Each index is summed in the order of `parts`, so results are
// the same on every transport. A sum that cancels to exactly zero is left out: it carries nothing.
// COST: dense enough inputs: one visit per entry plus one per 8192 indices and part, the index
// space walked in blocks that stay in the L1 cache. Others: merged, log2(parts) visits per entry,
// whatever the range. Nothing is allocated once `out` has held as much before.
#pragma once

#include <span>

#include "oktopk/sparse/coo.h"

namespace oktopk {

// out = sum of parts. REQUIRES: all indices lie in `range`; out is none of the parts.
void sum(std::span<const CooView> parts, Range range, SparseVector& out);

}  // namespace oktopk
