// SPDX-License-Identifier: Apache-2.0
// One row of `oktopk simulate`, as the simulated ranks run it: a first step, which sets thresholds,
// and steady ones, of a preset's Allreduce on selections made for it; or, where the payload would
// not fit, messages of the same sizes. Memory and thresholds stay from step to step: circulant's
// owners go from the first step to their stationary state without messages (settled_owners.h), and
// a few steps that are not measured let the thresholds of circulant and oktopk settle. All ranks
// begin a step at the same instant of a clock that they share. Nothing here knows the simulator: it
// is a communicator and a clock.
#pragma once

#include <functional>
#include <string>

#include "oktopk/comm/communicator.h"
#include "tools/simulate/spec.h"

namespace oktopk {

// The clock that all ranks share.
struct SimulatedClock {
  std::function<double()> now;  // seconds
  std::function<void(double instant)> sleep_until;
  std::function<void(double seconds)> compute;  // on this rank's host: a slow one takes longer
};

// Whether the preset, whose name may be oktopk_refresh, runs with real data.
bool carries_data(const std::string& preset, const SimulationSpec& spec, const SimulatedProblem& problem);

// Whether the preset's first step would need too much memory on all ranks together, so that its
// state comes from the survey instead, which needs the problem's cuts: oktopk by the paper's
// thresholds would gather the whole union.
bool starts_from_survey(const std::string& preset, const SimulationSpec& spec, const SimulatedProblem& problem);

// Bytes that all ranks need together, where the preset carries data.
double needed_bytes(const Method& method, const SimulationSpec& spec, const SimulatedProblem& problem);

// Collective; the row is complete on rank 0. `label` names it. UsageError unless there is a step,
// and, where oktopk gathers unions, warm-up and steps end before the next one. REQUIRES: all ranks
// share one memory.
SimulatedRow simulate_row(Communicator& comm, const SimulationSpec& spec, const SimulatedProblem& problem,
                          const std::string& label, const Method& method, const SimulatedClock& clock);

}  // namespace oktopk
