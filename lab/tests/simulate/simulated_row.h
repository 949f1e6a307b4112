// SPDX-License-Identifier: Apache-2.0
// A row of `oktopk-lab simulate` on threads, with a clock that only computing moves.
#pragma once

#include "lab/simulate/spec.h"
#include "tests/support/world.h"

namespace oktopk {

// Rank 0's row, which is complete.
inline SimulatedRow simulate_on_threads(const SimulationSpec& spec) {
  const auto simulate = [&](Communicator& comm) {
    double now = 0;
    const SimulatedClock clock{.now = [&] { return now; },
                               .sleep_until = [&](double instant) { now = instant; },
                               .compute = [&](double seconds) { now += seconds; }};
    return simulate_row(comm, spec, clock);
  };
  return gather_world("threads", spec.P, simulate).front();
}

}  // namespace oktopk
