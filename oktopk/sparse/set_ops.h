// SPDX-License-Identifier: Apache-2.0
// Set operations on the indices of canonical vectors.
#pragma once

#include <span>
#include <vector>

#include "oktopk/sparse/coo.h"

namespace oktopk {

// out = the entries of `a` whose index is also in `indices` (sorted): which of this rank's sent
// entries the world applied. COST: O(size of both).
void intersect(CooView a, std::span<const Index> indices, SparseVector& out);

// Memory of make_canonical, for reuse. Its content means nothing.
struct RunScratch {
  std::vector<CooView> runs;
  SparseVector here;
  SparseVector there;
};

// Sorts `v` by index; entries with the same index are added, in their order, and sums that are zero
// left out (what is canonical already stays as it is). COST: O(size * log(number of increasing
// runs)); a pass when it is canonical already.
void make_canonical(SparseVector& v, RunScratch& scratch);

}  // namespace oktopk
