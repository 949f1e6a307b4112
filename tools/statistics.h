// SPDX-License-Identifier: Apache-2.0
// Means, quantiles and norms.
#pragma once

#include <span>
#include <vector>

namespace oktopk {

double mean_of(std::span<const double> values);  // 0 if there are none
// Standard deviation of the sample; 0 for fewer than two.
double deviation_of(std::span<const double> values);
double max_of(std::span<const double> values);  // 0 if there are none

// The q-quantile, 0 <= q <= 1, linear between the sorted values; 0 if there are none.
double quantile(std::vector<double> values, double q);

// Largest / mean: 1 is even. 1 if all are zero or there are none.
double imbalance(std::span<const double> values);

// Each column's mean: by_rank[r][step] -> [step].
std::vector<double> mean_over_ranks(std::span<const std::vector<double>> by_rank);

double norm1(std::span<const double> values);
double norm2(std::span<const double> values);

}  // namespace oktopk
