// SPDX-License-Identifier: Apache-2.0
// One exchange on simulated ranks: begun by all at the same instant, ended with the last. What
// arrives is counted, and its processing charged.
#pragma once

#include <functional>

#include "oktopk/comm/collectives.h"
#include "tools/simulate/experiment.h"

namespace oktopk {

// Of the slowest rank, and of the busiest one, duplex (see Traffic).
struct TimedStep {
  double seconds = 0;
  double messages = 0;
  double bytes = 0;
};

// What a byte that arrives costs to process: the model's entries and values over its bytes.
double seconds_per_byte(const Cost& cost, const Machine& kernels);

// Collective over `all`. `body` communicates through what it is given: `part`, of which this rank
// is one, watched.
TimedStep time_step(Communicator& all, Communicator& part, const SimulationSpec& spec, const SimulatedClock& clock,
                    double seconds_per_byte, const std::function<void(Communicator&)>& body, Workspace& work);

}  // namespace oktopk
