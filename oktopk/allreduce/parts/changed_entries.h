// SPDX-License-Identifier: Apache-2.0
// The places of an owner's memory that a tentative step has changed, with their new values, for the copy of that memory
// on another rank (elastic/mirror.h). An undo list has the places in any order and several times; a bit per
// place brings them into order without a sort.
// COST: a visit per place of the list, and n/(64 P) words.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "oktopk/allreduce/parts/undo_list.h"
#include "oktopk/device/device.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

// Memory in the device's hands, whose first value has the index `base`.
struct PlacedFloats {
  std::span<float> values;
  Index base = 0;
};

class ChangedEntries {
 public:
  // changed = (place, value) of every place in the list, increasing, zeros included; place = index - base.
  void read(const UndoList& list, const Device& device, PlacedFloats memory, SparseVector& changed);

 private:
  std::vector<std::uint64_t> is_changed_;  // a bit for each place; all zero between calls
  SparseVector taken_, filled_;
};

}  // namespace oktopk
