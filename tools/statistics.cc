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

double deviation_of(std::span<const double> values) {
  if (values.size() < 2) return 0;
  const double mean = mean_of(values);
  double squares = 0;
  for (const double v : values) squares += (v - mean) * (v - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
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

double imbalance(std::span<const double> values) {
  const double mean = mean_of(values);
  return mean > 0 ? max_of(values) / mean : 1;
}

std::vector<double> mean_over_ranks(std::span<const std::vector<double>> by_rank) {
  std::vector<double> mean(by_rank.empty() ? 0 : by_rank[0].size(), 0.0);
  for (const std::vector<double>& rank : by_rank)
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += rank[i] / static_cast<double>(by_rank.size());
  return mean;
}

double norm1(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0, [](double sum, double v) { return sum + std::fabs(v); });
}

double norm2(std::span<const double> values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

}  // namespace oktopk
