// SPDX-License-Identifier: Apache-2.0
// The points of a line on the drawing. A long line is thinned: of the points that share a bucket (a
// column about one pixel wide) the lowest and the highest stay, so that it looks the same and no
// spike is lost.
#pragma once

#include <cstddef>
#include <vector>

namespace oktopk {

// Screen positions of one value of a series; a gap has no position and breaks the line.
struct CurvePoint {
  double x = 0, y = 0;
  std::size_t source = 0;  // which value of the series it is
  bool gap = false;
};

constexpr std::size_t kCurvePoints = 600;  // what a line is thinned to, gaps aside

// ENSURES: the lowest and the highest point remain, and the first and the last value, in order.
std::vector<CurvePoint> thinned(const std::vector<CurvePoint>& points, double left, double right);

}  // namespace oktopk
