// SPDX-License-Identifier: Apache-2.0
// From values to positions. An axis covers an extent of values, perhaps widened to zero, to round
// numbers, or to something when all values are equal, and maps it linearly or logarithmically onto
// a stretch of the drawing.
#pragma once

#include <vector>

#include "tools/report/ticks.h"

namespace oktopk {

// Whether an axis can show the value: finite (and not near the ends of double, where widening
// overflows), and positive if the axis is logarithmic.
bool can_show(double value, bool log);

struct Extent {
  double lo = 0, hi = 0;
  bool empty = true;

  void add(double value);
};

struct AxisOptions {
  bool log = false;
  bool round_ends = false;  // begin and end on a tick
  double reach = 0;         // or do so if it is this near, as a part of the extent (not for log)
  double zero_below = 0;    // begin at zero when the near end is less than this part of the far one
  int ticks = 5;
};

struct Axis {
  double lo = 0, hi = 1;
  bool log = false;
  std::vector<Tick> ticks;       // none if there was nothing to show
  double first = 0, last = 100;  // positions of lo and hi

  double at(double value) const;
};

Axis make_axis(Extent extent, const AxisOptions& options);

}  // namespace oktopk
