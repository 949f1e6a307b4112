// SPDX-License-Identifier: Apache-2.0
// How many entries a threshold lets through, near it: the slope of the tail, by which thresholds
// are steered towards a count, and the noise of such a count.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

namespace oktopk {

// Hill's estimator: the mean of ln(|v| / threshold) over some of the values, all of which reach the
// threshold. A threshold that rises by this much in ln() lets e times fewer through. 0 where a
// value is not finite. COST: at most 4,096 logarithms.
inline double tail_slope(std::span<const float> values, float threshold) {
  constexpr std::size_t kMostValues = 4096;
  const std::size_t stride = 1 + values.size() / kMostValues;
  double sum = 0;
  std::size_t count = 0;
  for (std::size_t i = 0; i < values.size(); i += stride, ++count) sum += std::log(std::fabs(values[i]) / threshold);
  return count == 0 || !std::isfinite(sum) ? 0.0 : sum / static_cast<double>(count);
}

// The same for a threshold that is to be moved: never negative (lossy codings may round below the
// threshold), and at most one half, beyond which it says nothing about the tail nearby.
inline double steering_slope(std::span<const float> values, float threshold) {
  return std::clamp(tail_slope(values, threshold), 0.0, 0.5);
}

// Two standard deviations of a count that is `count` on average.
inline double count_noise(double count) { return 2 * std::sqrt(count); }

}  // namespace oktopk
