// SPDX-License-Identifier: Apache-2.0
// Set operations on the indices of canonical vectors.
#pragma once

#include <span>

#include "oktopk/sparse/coo.h"

namespace oktopk {

// out = the entries of `a` whose index is also in `indices` (sorted): which of this rank's sent
// entries the world applied. COST: O(size of both).
void intersect(CooView a, std::span<const Index> indices, SparseVector& out);

// Sorts `v` by index; entries with the same index are added.
void make_canonical(SparseVector& v);

}  // namespace oktopk
