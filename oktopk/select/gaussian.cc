// SPDX-License-Identifier: Apache-2.0
#include "oktopk/select/gaussian.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace oktopk {
namespace {

constexpr int kCorrections = 3;
constexpr float kLower = 0.5F;  // factor when too few were selected
constexpr float kRaise = 1.5F;  // factor when too many were

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

}  // namespace

double normal_quantile(double p) {
  double low = -40;
  double high = 40;
  for (int i = 0; i < 200 && high - low > 1e-12; ++i) {
    const double middle = 0.5 * (low + high);
    (normal_cdf(middle) < p ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

void GaussianSelector::do_select(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out) {
  device.accumulate(in);
  const Moments fit = device.moments(in.acc);
  const double tail = static_cast<double>(k) / static_cast<double>(in.acc.size());
  // Two-sided: half of the k largest magnitudes lie in each tail. -quantile(tail/2) keeps the
  // precision that 1 - tail/2 would lose.
  const double deviations = tail >= 1 ? 0 : -normal_quantile(tail / 2);
  const double fitted = std::fabs(fit.mean) + deviations * fit.standard_deviation;
  // Values that are not finite make the fit so; they pass any threshold, and are refused.
  constexpr double kMost = std::numeric_limits<float>::max();
  auto threshold = static_cast<float>(fitted <= kMost ? fitted : kMost);
  for (int round = 0;; ++round) {
    out.clear();
    device.select_at_least(in.acc, 0, threshold, out);
    const bool too_few = 3 * out.size() < 2 * k;
    const bool too_many = 3 * out.size() > 4 * k;
    if (round == kCorrections || (!too_few && !too_many)) break;
    threshold *= too_few ? kLower : kRaise;
  }
  // A fit that is so far off that nothing is left would never send the rest.
  if (out.empty()) select_exact(device, {.acc = in.acc}, k, out);
}

}  // namespace oktopk
