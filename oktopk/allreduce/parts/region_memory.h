// SPDX-License-Identifier: Apache-2.0
// An owner's memory of its region, in the device's memory: one float per index, the sum of all that arrived and was not
// applied yet. A step adds the arrivals and takes out the entries that reach the threshold.
//
// An entry without arrivals is taken only if the threshold falls below it. So a log holds the entries that are large
// enough to be taken soon, and a step costs as much as arrives, not a pass over the region. The region is scanned only
// when the threshold falls below what the log covers, or when the log has grown long.
//
// COST of a step: one visit per entry that arrives, about a ns per entry of the log.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "oktopk/allreduce/parts/undo_list.h"
#include "oktopk/device/device.h"
#include "oktopk/sparse/coo.h"
#include "oktopk/sparse/sum.h"
#include "oktopk/sparse/tail.h"

namespace oktopk {

// All calls of an object get the same device.
class RegionMemory {
 public:
  // Takes the values of the region from host memory; all zero if there are none.
  void load(const Device& device, Range region, std::span<const float> host = {});

  Range region() const { return region_; }
  // One per index of the region, in the device's memory; good until the next change.
  std::span<const float> values() const { return {memory_.get(), region_.width()}; }
  // Appends the entries that are not zero.
  void append_to(const Device& device, SparseVector& out) const;
  // Appends the count largest entries, all of them if there are fewer, and perhaps some more. COST: two passes.
  void append_largest(const Device& device, std::size_t count, SparseVector& out) const;

  // Adds v, then moves the entries that have at least the threshold, and are not zero, to `taken`, by index. `near`
  // gets counts of the entries in the threshold's window. REQUIRES: v is canonical, inside the region.
  void add_take(const Device& device, CooView v, const Threshold& threshold, SparseVector& taken, NearTail& near);

  void add(const Device& device, CooView v);

  // factor 0 empties it.
  void scale(const Device& device, float factor);

  // From here on changes are noted; undo() takes them back, also a new region; forget_changes() ends it.
  void note_changes();
  void forget_changes();
  void undo(const Device& device);
  // As Allreduce::read_changes().
  bool read_changes(const Device& device, SparseVector& changed);

 private:
  std::span<float> floats() { return {memory_.get(), region_.width()}; }
  void visit(const Device& device, CooView v, std::uint32_t threshold, SparseVector& taken);
  void take_logged(const Device& device, const Threshold& threshold, NearTail& near);
  void scan(const Device& device, float from);
  void forget_log();
  void log(Index i);
  void note_all(const Device& device);
  std::size_t most_logged() const;

  struct Replaced {
    Range region;
    SparseVector entries;
  };

  Range region_;
  UndoList changes_;
  ChangedEntries changed_;
  std::optional<Replaced> replaced_;  // the memory of before, where the step has taken another region
  DeviceFloats memory_;
  std::size_t capacity_ = 0;  // floats of memory_
  // Holds every index whose magnitude (its bits) is at least logged_from_, and perhaps others.
  Uninitialised<Index> log_;
  std::vector<std::uint64_t> is_logged_;  // a bit for each index
  std::uint32_t logged_from_ = 0;
  std::size_t scanned_ = 0;  // entries that the last scan found
  SparseVector large_;       // taken by the log, or found by a scan
  SparseVector near_;        // entries that add_take reported
  SparseVector merged_;
  RunScratch runs_;
};

}  // namespace oktopk
