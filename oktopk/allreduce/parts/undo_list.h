// SPDX-License-Identifier: Apache-2.0
// The changes of an owner's memory in a tentative step: places and their values of before, in order.
// Undoing goes through them backwards, so a place may occur several times. A list that is off notes nothing, and plain
// steps pay nothing.
// COST: the pass that adds entries also writes their indices and the values of before, 8 bytes each. No visit more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "oktopk/device/device.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

class UndoList {
 public:
  bool is_on() const { return is_on_; }
  // Switches it on, with nothing noted; or off.
  void begin() { start(true); }
  void end() { start(false); }

  // The verbs of the device, noted. add_at REQUIRES that no index occurs twice, as add_take does.
  void add_take(const Device& device, std::span<float> x, Index base, CooView v, const TakeBounds& bounds,
                SparseVector& taken, SparseVector& reported);
  void add_at(const Device& device, std::span<float> x, Index base, CooView v);
  // Notes entries that were taken out of x, which left zeros there.
  void note_taken(CooView taken);

  // Calls visit(idx) for each list of places that changed; a place may occur in several.
  template <class Visit>
  void for_each_list(const Visit& visit) const {
    for (std::size_t c = 0; c < count_; ++c) visit(std::span<const Index>(changes_[c].idx));
  }

  // Gives x the values of before. The list is empty and on afterwards.
  void undo(const Device& device, std::span<float> x, Index base);

 private:
  struct Change {
    Uninitialised<Index> idx;
    Uninitialised<float> before;
  };

  void start(bool is_on) {
    is_on_ = is_on;
    count_ = 0;
  }
  Change& next();

  bool is_on_ = false;
  std::size_t count_ = 0;  // of changes_ in use: the others keep their memory
  std::vector<Change> changes_;
  SparseVector taken_, reported_;  // of add_at: empty
};

// Memory in the device's hands, whose first value has the index `base`.
struct PlacedFloats {
  std::span<float> values;
  Index base = 0;
};

// The places that a tentative step has changed, with their new values, for the copy of that memory on another rank
// (elastic/mirror.h). A bit per place brings the places of the list into order without a sort.
// COST: a visit per place of the list, and n/(64 P) words.
class ChangedEntries {
 public:
  // changed = (place, value) of every place in the list, increasing, zeros included; place = index - base.
  void read(const UndoList& list, const Device& device, PlacedFloats memory, SparseVector& changed);

 private:
  std::vector<std::uint64_t> is_changed_;  // a bit for each place; all zero between calls
  SparseVector taken_, filled_;
};

}  // namespace oktopk
