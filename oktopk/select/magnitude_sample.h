// SPDX-License-Identifier: Apache-2.0
// How many elements of an accumulator reach a magnitude, estimated from a few thousand clusters of
// neighbours before the pass over all of them. Neighbours are alike, so what a cluster tells is
// worth between one element and four; `uncertainty` measures it.
//
// Magnitudes are bits, which order like numbers and put infinities and NaN on top.
// COST: one or two cache misses per cluster, taken many at a time; O(sample).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "oktopk/device/device.h"

namespace oktopk {

class MagnitudeSample {
 public:
  static constexpr std::size_t kCluster = 4;
  static constexpr std::size_t kMaxClusters = 4096;

  // At most `clusters`, spread over what `in` will make of its accumulator; another turn takes
  // others. REQUIRES: clusters >= 1, in.acc not empty.
  void draw(const Device& device, const Accumulation& in, std::size_t clusters, std::size_t turn);

  std::size_t size() const { return bits_.size(); }
  // The elements of the sample that stand for `count` elements of the accumulator.
  double share(double count) const { return count * static_cast<double>(bits_.size()) / static_cast<double>(n_); }
  std::size_t count_at_least(float threshold) const;
  // The standard deviation of count_at_least(threshold).
  double uncertainty(float threshold) const;
  // The magnitude that is the rank-th largest, from 0; not above the largest finite number.
  // REQUIRES: size() > 0.
  float largest(std::size_t rank);

 private:
  std::size_t n_ = 0;
  Uninitialised<std::uint32_t> bits_;
  std::array<std::uint32_t, kMagnitudeBins> bins_{};  // how many of bits_ are in each bin
  Uninitialised<std::uint32_t> bin_;                  // those of one bin
};

}  // namespace oktopk
