// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/changed_entries.h"

#include <bit>

#include "oktopk/cpu/kernels.h"

namespace oktopk {

void ChangedEntries::read(const UndoList& list, const Device& device, PlacedFloats memory, SparseVector& changed) {
  is_changed_.resize(memory.values.size() / 64 + 1);
  list.for_each_list([&](std::span<const Index> idx) {
    for (const Index i : idx) is_changed_[(i - memory.base) / 64] |= std::uint64_t{1} << ((i - memory.base) % 64);
  });
  changed.clear();
  for (std::size_t w = 0; w < is_changed_.size(); ++w)
    for (; is_changed_[w] != 0; is_changed_[w] &= is_changed_[w] - 1)
      changed.push_back(static_cast<Index>(w * 64 + static_cast<std::size_t>(std::countr_zero(is_changed_[w]))), 0);
  // A visit that adds nothing, takes nothing and reports all that is not zero.
  device.add_take(memory.values, 0, {changed.idx, {}}, {.take = kAboveAll, .report = 1}, taken_, filled_);
  for (std::size_t at = 0, e = 0; e < filled_.size(); ++e) {
    while (changed.idx[at] != filled_.idx[e]) ++at;
    changed.val[at] = filled_.val[e];
  }
}

}  // namespace oktopk
