// SPDX-License-Identifier: Apache-2.0
// Sums and intersections of canonical sparse vectors. Each index is summed in the order of `parts`, so results are the
// same on every transport. Sums that are exactly zero are left out. COST: dense inputs are added in blocks of 8192
// indices that stay in the L1 cache: one visit per entry plus one per block and part. Sparse inputs are merged:
// log2(parts) visits per entry. Nothing is allocated once `out` has held as much.
#pragma once

#include <span>
#include <vector>

#include "oktopk/sparse/coo.h"

namespace oktopk {

// out = sum of parts. REQUIRES: all indices lie in `range`; out is none of the parts.
void sum(std::span<const CooView> parts, Range range, SparseVector& out);

// out = the entries of `a` whose index is also in the sorted `indices`. COST: O(size of both).
void intersect(CooView a, std::span<const Index> indices, SparseVector& out);

// Memory of make_canonical, for reuse. Its content means nothing.
struct RunScratch {
  std::vector<CooView> runs;
  SparseVector here;
  SparseVector there;
};

// Sorts `v` by index, adds entries of the same index in their order, and leaves out sums that are zero. A vector that
// is canonical already stays as it is. COST: O(size * log(number of increasing runs)).
void make_canonical(SparseVector& v, RunScratch& scratch);

}  // namespace oktopk
