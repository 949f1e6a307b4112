// SPDX-License-Identifier: Apache-2.0
// An owner's memory of its region: all that arrived and was not applied yet. While few entries are
// remembered they are kept as a sorted vector, and a step is a merge; when it is well filled, as
// one float per index with records that spare a pass over it (dense_region.h). Both give the same
// bits.
//
// COST of a step: a few ns per entry that arrives, and per entry held while they are few.
#pragma once

#include <span>

#include "oktopk/allreduce/parts/dense_region.h"
#include "oktopk/device/device.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

class RegionMemory {
 public:
  // Empty.
  void reset(Range region);
  // REQUIRES: values.size() == region.width().
  void load(Range region, std::span<const float> values);

  Range region() const { return region_; }
  // One per index of the region; good until the next change.
  std::span<const float> values() const;
  // Appends what is not zero.
  void append_to(const Device& device, SparseVector& out) const;
  // Appends the count largest entries, all of them if there are fewer, and perhaps some more.
  // COST: two passes over the region, once it is well filled.
  void append_largest(const Device& device, std::size_t count, SparseVector& out) const;

  // Adds v, then moves what has at least the threshold out: `taken` gets it, by index, and `near`
  // what lies in its window. REQUIRES: v is canonical, inside the region.
  void add_take(const Device& device, CooView v, const Threshold& threshold, SparseVector& taken, NearTail& near);

  void add(CooView v);

  // factor 0 empties it.
  void scale(const Device& device, float factor);

 private:
  void fill_up() const;

  Range region_;
  // The entries are in few_, or all values in all_: which one is no matter of the content.
  mutable bool is_full_ = false;
  mutable SparseVector few_;
  mutable DenseRegion all_;
  SparseVector sum_;
};

}  // namespace oktopk
