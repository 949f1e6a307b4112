// SPDX-License-Identifier: Apache-2.0
// One row of `oktopk simulate`, as the simulated ranks run it: a first step, which sets thresholds, and steady ones, of
// a preset's Allreduce on selections made for it (supports.h). Owner memory and thresholds stay from step to step:
// circulant's owners go from the first step to their stationary state without messages (settled_owners.h), and a few
// steps that are not measured let the thresholds of circulant and oktopk settle. With groups (reduce/node_reducer.h)
// the ranks of a node sum first, the leaders run the allreduce, and the nodes share the update; the three times add up.
// This file knows a communicator and a clock, not the simulator.
#pragma once

#include <functional>

#include "oktopk/comm/communicator.h"
#include "tools/simulate/spec.h"

namespace oktopk {

// The clock that all ranks share.
struct SimulatedClock {
  std::function<double()> now;  // seconds
  std::function<void(double instant)> sleep_until;
  std::function<void(double seconds)> compute;  // on this rank's processor
};

// Collective; the row is complete on rank 0. UsageError unless there is a step, and, where oktopk gathers unions,
// warm-up and steps end before the next one. REQUIRES: all ranks share one memory.
SimulatedRow simulate_row(Communicator& comm, const SimulationSpec& spec, const SimulatedClock& clock);

}  // namespace oktopk
