// SPDX-License-Identifier: Apache-2.0
#include "tools/report/axes.h"

#include <algorithm>
#include <cmath>

namespace oktopk {
namespace {

constexpr double kLargest = 1e300;
constexpr double kSmallest = 1e-300;
constexpr double kSame = 1e-9;  // relative: a narrower extent would have labels of noise

double power_below(double value) { return std::pow(10.0, std::floor(std::log10(value) + kSame)); }

Extent widened(Extent extent, const AxisOptions& options, double& step) {
  auto [lo, hi, empty] = extent;
  const double size = std::max(std::abs(lo), std::abs(hi));
  if (hi - lo <= kSame * size || hi - lo < kSmallest) {
    const double pad = size < kSmallest ? 0 : 0.1 * size;
    lo -= pad;
    hi += pad == 0 ? 1 : pad;
  }
  if (lo > 0 && lo <= options.zero_below * hi) lo = 0;
  if (hi < 0 && hi >= options.zero_below * lo) hi = 0;
  step = nice_step(hi - lo, options.ticks);
  const double reach = options.round_ends ? step : options.reach * (hi - lo);
  const double below = std::floor(lo / step + kSame) * step;
  const double above = std::ceil(hi / step - kSame) * step;
  if (lo - below <= reach) lo = below;
  if (above - hi <= reach) hi = above;
  return {lo, hi, empty};
}

Extent widened_log(Extent extent, const AxisOptions& options) {
  auto [lo, hi, empty] = extent;
  if (hi <= lo * (1 + kSame)) {
    lo /= 2;
    hi *= 2;
  }
  if (options.round_ends) {
    lo = std::floor(lo / power_below(lo) + kSame) * power_below(lo);
    hi = std::ceil(hi / power_below(hi) - kSame) * power_below(hi);
  }
  return {lo, hi, empty};
}

}  // namespace

bool can_show(double value, bool log) { return std::abs(value) <= kLargest && (!log || value >= kSmallest); }

void Extent::add(double value) {
  lo = empty ? value : std::min(lo, value);
  hi = empty ? value : std::max(hi, value);
  empty = false;
}

double Axis::at(double value) const {
  // Not the logarithm of a quotient: that overflows.
  const double part = log ? (std::log(value) - std::log(lo)) / (std::log(hi) - std::log(lo)) : (value - lo) / (hi - lo);
  return first + part * (last - first);
}

Axis make_axis(Extent extent, const AxisOptions& options) {
  Axis axis;
  if (extent.empty) return axis;
  double step = 0;
  extent = options.log ? widened_log(extent, options) : widened(extent, options, step);
  axis.lo = extent.lo;
  axis.hi = extent.hi;
  axis.log = options.log;
  axis.ticks = options.log ? log_ticks(axis.lo, axis.hi) : linear_ticks(axis.lo, axis.hi, step);
  return axis;
}

}  // namespace oktopk
