// SPDX-License-Identifier: Apache-2.0
// A kernel and its limit, timed in turns, so that both see the same machine: other programs, clock and temperature
// change over a run, but hardly from one repetition to the next.
#pragma once

#include <functional>

#include "tools/statistics.h"

namespace oktopk {

using Body = std::function<void()>;

struct TimedPair {
  Times kernel, limit;
  double ratio() const { return limit.median > 0 ? kernel.median / limit.median : 0; }
  double least_ratio() const { return limit.least > 0 ? kernel.least / limit.least : 0; }
};

// One repetition: prepare (not timed), kernel, prepare, limit. The first is not counted: it warms the buffers. Limit
// and prepare may be empty. A body that takes less than 20 us and needs no preparation runs several times per
// repetition.
TimedPair time_in_turns(int repetitions, const Body& kernel, const Body& limit = {}, const Body& prepare = {});

}  // namespace oktopk
