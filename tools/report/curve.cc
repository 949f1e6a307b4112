// SPDX-License-Identifier: Apache-2.0
#include "tools/report/curve.h"

#include <algorithm>
#include <cmath>

#include "tools/report/plot.h"

namespace oktopk {
namespace {

constexpr std::size_t kBuckets = kCurvePoints / 2;

// Appends the lowest and the highest of [begin, end) in their order; a gap if that is all there is.
void keep_extremes(const CurvePoint* begin, const CurvePoint* end, std::vector<CurvePoint>& out) {
  const CurvePoint* low = nullptr;
  const CurvePoint* high = nullptr;
  for (const CurvePoint* p = begin; p != end; ++p) {
    if (p->gap) continue;
    if (low == nullptr || p->y < low->y) low = p;
    if (high == nullptr || p->y > high->y) high = p;
  }
  if (low == nullptr) {
    out.push_back(*begin);
    return;
  }
  out.push_back(*std::min(low, high));
  if (low != high) out.push_back(*std::max(low, high));
}

// Cuts wherever `differ` says that a point does not belong with the one before it; the ends stand
// alone, so that they are kept.
template <class Differ>
std::vector<CurvePoint> one_per_group(const std::vector<CurvePoint>& points, Differ differ) {
  std::vector<CurvePoint> out;
  std::size_t begin = 0;
  for (std::size_t i = 1; i <= points.size(); ++i) {
    if (i > 1 && i + 1 < points.size() && !differ(i - 1, i)) continue;
    keep_extremes(points.data() + begin, points.data() + i, out);
    begin = i;
  }
  return out;
}

}  // namespace

std::vector<CurvePoint> thinned(const std::vector<CurvePoint>& points, double left, double right) {
  if (points.size() <= kCurvePoints) return points;
  const auto column = [&](const CurvePoint& p) {
    return std::floor((p.x - left) / (right - left) * static_cast<double>(kBuckets));
  };
  std::vector<CurvePoint> by_column = one_per_group(points, [&](std::size_t a, std::size_t b) {
    const bool gaps = points[a].gap && points[b].gap;
    return !gaps && (points[a].gap || points[b].gap || column(points[a]) != column(points[b]));
  });
  if (by_column.size() <= 2 * kCurvePoints) return by_column;
  // x goes back and forth, or gaps are everywhere: groups of equal size, whatever is in them.
  const std::size_t size = (points.size() + kBuckets - 1) / kBuckets;
  return one_per_group(points, [&](std::size_t a, std::size_t b) { return a / size != b / size; });
}

Series smoothed(Series series, std::size_t window) {
  const std::vector<double> y = series.y;
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (!std::isfinite(y[i])) continue;
    // Not from running sums: one huge value would leave its rounding error in all that follow.
    const std::size_t end = std::min(y.size(), i + std::max<std::size_t>(1, window - window / 2));
    double sum = 0, count = 0;
    for (std::size_t j = i - std::min(i, window / 2); j < end; ++j) {
      if (!std::isfinite(y[j])) continue;
      sum += y[j];
      ++count;
    }
    series.y[i] = sum / count;
  }
  return series;
}

}  // namespace oktopk
