// SPDX-License-Identifier: Apache-2.0
// One float per index of a region, from which what is large enough is taken again and again: an
// owner's memory once it is well filled (region_memory.h).
// An entry that nothing was added to is taken only if the threshold falls below it. So a log is
// kept up to date of the entries that are large enough to be taken soon, and a step costs what
// arrives, not a pass over the region. The log is filtered as a list, without a look at the values;
// only when the threshold falls below what it covers, or when it has grown long, is the region
// scanned.
//
// COST of a step: one visit per entry that arrives, about a ns per entry of the log.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "oktopk/device/device.h"
#include "oktopk/sparse/coo.h"
#include "oktopk/sparse/sum.h"
#include "oktopk/sparse/tail.h"

namespace oktopk {

class DenseRegion {
 public:
  // All zero, except for v, which is canonical and inside the region.
  void reset(Range region, CooView v);

  std::span<const float> values() const { return values_; }

  // Adds v, then moves what has at least the threshold (and is not zero) out: `taken` gets it, by
  // index, and zeros stay behind. `near` gets what lies in the threshold's window afterwards.
  // REQUIRES: v is canonical, inside the region.
  void add_take(const Device& device, CooView v, const Threshold& threshold, SparseVector& taken, NearTail& near);

  void add(CooView v);

  void scale(const Device& device, float factor);

 private:
  void visit(CooView v, std::uint32_t threshold, SparseVector& taken);
  void take_logged(const Threshold& threshold, NearTail& near);
  void scan(const Device& device, float from);
  void forget_log();
  std::size_t most_logged() const;

  Range region_;
  Uninitialised<float> values_;
  // Every index whose value has a magnitude of logged_from_ (its bits) or more stands in the log;
  // others may, too.
  Uninitialised<Index> log_;
  std::vector<std::uint64_t> is_logged_;  // a bit for each index
  std::uint32_t logged_from_ = 0;
  std::size_t scanned_ = 0;  // entries that the last scan found
  SparseVector large_;       // taken by the log, or found by a scan
  SparseVector merged_;
  RunScratch runs_;
};

}  // namespace oktopk
