// SPDX-License-Identifier: Apache-2.0
// How many entries pass a threshold, near it: the slope of the tail, by which thresholds are steered towards a count,
// the noise of such a count, and a histogram of what lies just below the threshold (circulant's owners report it).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace oktopk {

// Hill's estimator: the mean of ln(|v| / threshold) over some of the values, all of which reach the threshold. If ln()
// of the threshold rises by this much, e times fewer values pass. 0 if a value is not finite. COST: at most 4,096
// logarithms.
inline double tail_slope(std::span<const float> values, float threshold) {
  constexpr std::size_t kMostValues = 4096;
  const std::size_t stride = 1 + values.size() / kMostValues;
  double sum = 0;
  std::size_t count = 0;
  for (std::size_t i = 0; i < values.size(); i += stride, ++count) sum += std::log(std::fabs(values[i]) / threshold);
  return count == 0 || !std::isfinite(sum) ? 0.0 : sum / static_cast<double>(count);
}

// The same for moving a threshold: never negative (lossy codings may round values below the threshold), and at most one
// half, because a larger slope says nothing about the tail nearby.
inline double steering_slope(std::span<const float> values, float threshold) {
  return std::clamp(tail_slope(values, threshold), 0.0, 0.5);
}

// Two standard deviations of a count that is `count` on average.
inline double count_noise(double count) { return 2 * std::sqrt(count); }

// Entries of at least `value` are taken; the window reaches down to value * (1 - window). An owner's memory is
// densest just below the threshold, so the window is narrow; whoever steers the threshold chooses its width.
struct Threshold {
  float value = 0;
  float window = 0;

  float window_end() const { return value * (1 - window); }
};

struct NearTail {
  static constexpr std::size_t kBins = 8;
  std::uint64_t arrivals = 0;                // entries that were taken because something was added to them
  std::array<std::uint64_t, kBins> below{};  // from the threshold downwards, equal widths

  // Sorts the magnitudes that lie in the window into the bins.
  void count(const Threshold& threshold, std::span<const float> values) {
    const float width = threshold.value * threshold.window;
    const float scale = width > 0 ? kBins / width : 0;
    for (const float x : values) {
      const float place = (threshold.value - std::fabs(x)) * scale;
      if (place > 0 && place < static_cast<float>(kBins)) ++below[static_cast<std::size_t>(place)];
    }
  }

  NearTail& operator+=(const NearTail& other) {
    arrivals += other.arrivals;
    for (std::size_t j = 0; j < kBins; ++j) below[j] += other.below[j];
    return *this;
  }
};

}  // namespace oktopk
