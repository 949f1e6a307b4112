// SPDX-License-Identifier: Apache-2.0
// An owner's memory of its region: all that arrived and was not applied yet, one float per index.
// An entry that nothing was added to is selected only if the threshold falls below it. So two
// records are kept up to date entry by entry, and a step costs what arrives, not a pass over the
// region: a histogram of the magnitudes (it steers the threshold), and a bitmap of the entries that
// are large enough to be selected soon. Only when the threshold falls below what the bitmap covers
// is the region scanned.
//
// COST of a step: one visit per entry that arrives and per marked one, width/64 words of bitmap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "oktopk/device/device.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

class RegionMemory {
 public:
  // All zero.
  void reset(Range region);
  // REQUIRES: values.size() == region.width().
  void load(Range region, std::span<const float> values);

  Range region() const { return region_; }
  std::span<const float> values() const { return values_; }
  // Of the values that are not zero.
  const MagnitudeHistogram& bins() const { return bins_; }

  // Adds the parts, each index in the order of `parts`, then moves what has at least the threshold
  // (and is not zero) out: `taken` gets it, by index, and zeros stay behind.
  // REQUIRES: the parts are canonical, inside the region.
  void add_take(const Device& device, std::span<const CooView> parts, float threshold,
                SparseVector& taken);

  void add(CooView v) { add_part(v, 0, v.size()); }

  void scale(const Device& device, float factor);

 private:
  static constexpr std::size_t kBlock = 8192;  // floats, 32 KiB: as much as the L1 cache holds

  void add_part(CooView v, std::size_t first, std::size_t last);
  void take_block(std::size_t block, std::uint32_t threshold, SparseVector& taken,
                  std::size_t& count);
  void scan(const Device& device, float from);

  Range region_;
  Uninitialised<float> values_;
  MagnitudeHistogram bins_{};
  Uninitialised<std::uint64_t> marks_;  // holds bit i where |values_[i]| >= marked_from_
  std::uint32_t marked_from_ = 0;       // bits of a magnitude
  std::vector<std::size_t> next_;       // of each part, the first entry that was not added yet
  SparseVector large_;
};

}  // namespace oktopk
