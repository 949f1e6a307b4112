// SPDX-License-Identifier: Apache-2.0
// The changes of an owner's memory in a tentative step: places and their values of before, in order.
// Undoing goes through them backwards, so a place may occur several times. A list that is off notes nothing, and plain
// steps pay nothing.
// COST: one more visit per entry that is added, O(k) per step.
#pragma once

#include <cstddef>
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

  // Notes the values of x at idx, which are about to change. REQUIRES: no index occurs twice in idx.
  void note(const Device& device, std::span<float> x, Index base, std::span<const Index> idx);
  // Notes entries that were taken out of x, which left zeros there.
  void note_taken(CooView taken);

  // Gives x the values of before. The list is empty and on afterwards.
  void undo(const Device& device, std::span<float> x, Index base);

 private:
  struct Change {
    Uninitialised<Index> idx;
    SparseVector old;  // those of idx that were not zero
  };

  void start(bool is_on) {
    is_on_ = is_on;
    count_ = 0;
  }
  Change& next();

  bool is_on_ = false;
  std::size_t count_ = 0;  // of changes_ in use: the others keep their memory
  std::vector<Change> changes_;
  SparseVector none_;
};

}  // namespace oktopk
