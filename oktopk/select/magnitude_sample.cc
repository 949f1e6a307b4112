// SPDX-License-Identifier: Apache-2.0
#include "oktopk/select/magnitude_sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

namespace oktopk {
namespace {

std::size_t bin_of(std::uint32_t bits) { return magnitude_bin(std::bit_cast<float>(bits)); }

}  // namespace

void MagnitudeSample::draw(const Device& device, const Accumulation& in, std::size_t clusters, std::size_t turn) {
  n_ = in.acc.size();
  // Odd: tensors have rows of even length, and a sample of a few columns would tell little.
  const std::size_t stride = std::max(kCluster, n_ / std::clamp(clusters, std::size_t{1}, kMaxClusters)) | 1U;
  device.sample_magnitudes(in, turn * kCluster % std::min(stride, n_), stride, bits_);
  bins_ = {};
  for (const std::uint32_t m : bits_) ++bins_[bin_of(m)];
}

std::size_t MagnitudeSample::count_at_least(float threshold) const {
  const auto bound = std::bit_cast<std::uint32_t>(threshold);
  return static_cast<std::size_t>(
      std::count_if(bits_.begin(), bits_.end(), [bound](std::uint32_t m) { return m >= bound; }));
}

// Clusters are independent of each other, so the variance is about the sum of their squared counts.
double MagnitudeSample::uncertainty(float threshold) const {
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

// Only the elements of one bin have to be compared with each other.
float MagnitudeSample::largest(std::size_t rank) {
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

}  // namespace oktopk
