// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/undo_list.h"

#include <bit>

#include "oktopk/cpu/kernels.h"

namespace oktopk {

// It counts only when it is whole: an exception half-way leaves the list as it was.
UndoList::Change& UndoList::next() {
  if (count_ == changes_.size()) changes_.emplace_back();
  return changes_[count_];
}

void UndoList::add_take(const Device& device, std::span<float> x, Index base, CooView v, const TakeBounds& bounds,
                        SparseVector& taken, SparseVector& reported) {
  if (!is_on_ || v.empty()) return device.add_take(x, base, v, bounds, taken, reported);
  Change& change = next();
  change.idx.assign(v.idx.begin(), v.idx.end());
  change.before.resize(v.size());
  device.add_take(x, base, v, bounds, taken, reported, change.before.data());
  ++count_;
}

void UndoList::add_at(const Device& device, std::span<float> x, Index base, CooView v) {
  if (!is_on_) return device.add_at(x, base, v);
  add_take(device, x, base, v, {.take = kAboveAll, .report = kAboveAll}, taken_, reported_);
}

void UndoList::note_taken(CooView taken) {
  if (!is_on_ || taken.empty()) return;
  Change& change = next();
  change.idx.assign(taken.idx.begin(), taken.idx.end());
  change.before.assign(taken.val.begin(), taken.val.end());
  ++count_;
}

// Adding to zero gives the value of before: owner memory holds no negative zeros, since it starts from zero.
void UndoList::undo(const Device& device, std::span<float> x, Index base) {
  for (; count_ > 0; --count_) {
    const Change& change = changes_[count_ - 1];
    device.clear_at(x, base, change.idx);
    device.add_at(x, base, {change.idx, change.before});
  }
}

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
