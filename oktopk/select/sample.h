// SPDX-License-Identifier: Apache-2.0
// How many elements of an accumulator reach a magnitude, estimated from a few thousand clusters of neighbours before
// the pass over all elements. Neighbours are alike, so a cluster is worth between one element and four; `uncertainty`
// measures it. Magnitudes are bits, which order like numbers and put infinities and NaN on top.
// COST: one or two cache misses per cluster, taken many at a time; O(sample).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>

#include "oktopk/device/device.h"

namespace oktopk {

class MagnitudeSample {
 public:
  static constexpr std::size_t kCluster = 4;
  static constexpr std::size_t kMaxClusters = 4096;

  // Takes at most `clusters`, spread over what `in` will make of its accumulator; another turn takes others.
  // REQUIRES: clusters >= 1, in.acc not empty.
  void draw(const Device& device, const Accumulation& in, std::size_t clusters, std::size_t turn) {
    n_ = in.acc.size();
    // Odd: tensors have rows of even length, and a sample of a few columns would tell little.
    const std::size_t stride = std::max(kCluster, n_ / std::clamp(clusters, std::size_t{1}, kMaxClusters)) | 1U;
    device.sample_magnitudes(in, turn * kCluster % std::min(stride, n_), stride, bits_);
    bins_ = {};
    for (const std::uint32_t m : bits_) ++bins_[bin_of(m)];
  }

  std::size_t size() const { return bits_.size(); }
  // The elements of the sample that stand for `count` elements of the accumulator.
  double share(double count) const { return count * static_cast<double>(bits_.size()) / static_cast<double>(n_); }

  std::size_t count_at_least(float threshold) const {
    const auto bound = std::bit_cast<std::uint32_t>(threshold);
    return static_cast<std::size_t>(
        std::count_if(bits_.begin(), bits_.end(), [bound](std::uint32_t m) { return m >= bound; }));
  }

  // The standard deviation of count_at_least(threshold). Clusters are independent of each other, so the variance is
  // about the sum of their squared counts.
  double uncertainty(float threshold) const {
    const auto bound = std::bit_cast<std::uint32_t>(threshold);
    std::size_t squares = 0;
    for (std::size_t first = 0; first < bits_.size(); first += kCluster) {
      std::size_t count = 0;
      for (std::size_t i = first; i < std::min(first + kCluster, bits_.size()); ++i)
        count += static_cast<std::size_t>(bits_[i] >= bound);
      squares += count * count;
    }
    return std::sqrt(static_cast<double>(squares));
  }

  // The rank-th largest magnitude, from 0; not above the largest finite number. Only the elements of one bin have to be
  // compared with each other. REQUIRES: size() > 0.
  float largest(std::size_t rank) {
    constexpr auto kMost = std::bit_cast<std::uint32_t>(std::numeric_limits<float>::max());
    std::size_t left = std::min(rank, bits_.size() - 1);
    std::size_t bin = kMagnitudeBins - 1;
    for (; left >= bins_[bin]; --bin) left -= bins_[bin];
    bin_.clear();
    for (const std::uint32_t m : bits_)
      if (bin_of(m) == bin) bin_.push_back(m);
    const auto place = bin_.begin() + static_cast<std::ptrdiff_t>(left);
    std::nth_element(bin_.begin(), place, bin_.end(), std::greater<>());
    return std::bit_cast<float>(std::min(*place, kMost));
  }

 private:
  static std::size_t bin_of(std::uint32_t bits) { return magnitude_bin(std::bit_cast<float>(bits)); }

  std::size_t n_ = 0;
  Uninitialised<std::uint32_t> bits_;
  std::array<std::uint32_t, kMagnitudeBins> bins_{};  // how many of bits_ are in each bin
  Uninitialised<std::uint32_t> bin_;                  // those of one bin
};

}  // namespace oktopk
