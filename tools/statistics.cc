// SPDX-License-Identifier: Apache-2.0
#include "tools/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace oktopk {

double mean_of(std::span<const double> values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double max_of(std::span<const double> values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double place = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - std::floor(place)) * (values[above] - values[below]);
}

Times summarise(const std::vector<double>& seconds) {
  if (seconds.empty()) return {};
  Times times;
  times.median = quantile(seconds, 0.5);
  times.least = *std::min_element(seconds.begin(), seconds.end());
  std::vector<double> off;
  for (const double s : seconds) off.push_back(std::fabs(s - times.median));
  times.deviation = quantile(off, 0.5);
  return times;
}

}  // namespace oktopk
