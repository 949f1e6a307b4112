// SPDX-License-Identifier: Apache-2.0
// Merges of sorted vectors, for sums of few or far-scattered entries (sum.cc). A merge has no
// branch that depends on the data: supports are random, and a wrong guess costs more than three
// entries. The result is built from both ends at once, so that each end's chain of dependent loads
// hides the other's. COST: about 5 cycles per entry and merge, whatever the supports.
#pragma once

#include <cstddef>
#include <span>

#include "oktopk/sparse/coo.h"
#include "oktopk/sparse/kernels.h"

namespace oktopk {

// All entries of a and b in the order of their indices, of equal indices those of a first. An index
// may occur several times. REQUIRES: out has room for them and overlaps neither.
void merge(CooView a, CooView b, CooSink out);

// All entries of all parts in the order of their indices, of equal indices in the order of `parts`:
// returns where they are. REQUIRES: two or more parts; `here` and `there` have room for all
// entries each. COST: log2(parts) merges per entry.
CooView merge_all(std::span<const CooView> parts, CooSink here, CooSink there);

// Adds neighbours of equal index, in their order, and leaves out what is zero; returns how many are
// left. `out` may be `sorted` itself.
std::size_t combine(CooView sorted, CooSink out);

}  // namespace oktopk
