// SPDX-License-Identifier: Apache-2.0
// Sparse vectors as kernels take them, and merges of sorted vectors (sum.cc). COST: about 5 cycles per entry and merge,
// whatever the supports.
#pragma once

#include <cstddef>
#include <span>

#include "oktopk/cpu/kernels.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

// Vectors as kernels take them.
inline CooSource source_of(CooView v) { return {v.idx.data(), v.val.data(), v.size()}; }
inline CooSink sink_of(SparseVector& v) { return {v.idx.data(), v.val.data()}; }

// Empties `out` and makes room for `count` entries and the slack of kernels; resize() it to what was written.
inline CooSink make_room(SparseVector& out, std::size_t count) {
  out.clear();
  out.resize(count + kSlack);
  return sink_of(out);
}

// All entries of a and b by index; where indices are equal, those of a first. An index may occur several times.
// REQUIRES: out has room for them and overlaps neither.
void merge(CooView a, CooView b, CooSink out);

// All entries of all parts by index; where indices are equal, in the order of `parts`. Returns where they are.
// REQUIRES: two or more parts; `here` and `there` have room for all entries each. COST: log2(parts) merges per entry.
CooView merge_all(std::span<const CooView> parts, CooSink here, CooSink there);

}  // namespace oktopk
