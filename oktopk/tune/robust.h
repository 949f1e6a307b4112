// SPDX-License-Identifier: Apache-2.0
// Summaries of measured times that one odd value does not spoil.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace oktopk {

// Seconds since any moment.
using Clock = std::function<double()>;

// 0 when there are none.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// The median of the slopes between all pairs of points (Theil and Sen): of five points, any one may
// be arbitrarily wrong. REQUIRES: as many y as x, no two x equal.
inline double median_slope(std::span<const double> x, std::span<const double> y) {
  std::vector<double> slopes;
  for (std::size_t i = 0; i < x.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) slopes.push_back((y[i] - y[j]) / (x[i] - x[j]));
  return median(std::move(slopes));
}

}  // namespace oktopk
