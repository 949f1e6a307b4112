// SPDX-License-Identifier: Apache-2.0
// When circulant moves its cuts: when the load of the regions (entries that arrived for them) is
// uneven beyond noise, and not soon after the last time. Owners give their memory up with their
// region, so a recut that helps nobody is worth avoiding:
//   * The load of a single index cannot be divided: its region does not count.
//   * After a recut that brought the largest load neither down nor into a narrower region, the next
//     one waits twice as long, up to kLongestPause.
// Integers that all ranks share decide, so they decide alike. COST: O(P) per step.
#pragma once

#include <cstdint>
#include <span>

#include "oktopk/base/state.h"
#include "oktopk/sparse/cuts.h"

namespace oktopk {

class RecutRule {
 public:
  static constexpr std::uint64_t kPause = 16;  // steps between two changes, at least
  static constexpr std::uint64_t kLongestPause = 256;

  // To be asked once in every step, with the load of each region. True: cut anew.
  bool is_due(std::uint64_t step, const Cuts& cuts, std::span<const std::uint64_t> load);

  void save(StateWriter& state) const;
  void load(StateReader& state);

 private:
  std::uint64_t last_ = 0;  // step of the last recut
  std::uint64_t pause_ = kPause;
  // Before it: the largest load in 1/1000 of the mean (0: no recut yet), the width of its region.
  std::uint64_t uneven_ = 0;
  std::uint64_t width_ = 0;
};

}  // namespace oktopk
