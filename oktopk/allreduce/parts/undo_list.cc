// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/undo_list.h"

#include "oktopk/cpu/kernels.h"

namespace oktopk {

UndoList::Change& UndoList::next() {
  if (count_ == changes_.size()) changes_.emplace_back();
  return changes_[count_++];
}

void UndoList::note(const Device& device, std::span<float> x, Index base, std::span<const Index> idx) {
  if (!is_on_ || idx.empty()) return;
  Change& change = next();
  change.idx.assign(idx.begin(), idx.end());
  // A visit that adds nothing, takes nothing and reports all that is not zero.
  device.add_take(x, base, {idx, {}}, {.take = kAboveAll, .report = 1}, none_, change.old);
}

void UndoList::note_taken(CooView taken) {
  if (!is_on_ || taken.empty()) return;
  Change& change = next();
  change.idx.assign(taken.idx.begin(), taken.idx.end());
  change.old.clear();
  change.old.append(taken);
}

void UndoList::undo(const Device& device, std::span<float> x, Index base) {
  for (; count_ > 0; --count_) {
    const Change& change = changes_[count_ - 1];
    device.clear_at(x, base, change.idx);
    device.add_at(x, base, change.old);
  }
}

}  // namespace oktopk
