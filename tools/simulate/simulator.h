// SPDX-License-Identifier: Apache-2.0
// The simulator, SimGrid's SMPI, as the simulated program needs it besides its messages: the clock
// and the end. Only simulator.cc and the MPI transport see the simulator's headers.
#pragma once

#include "tools/simulate/experiment.h"

namespace oktopk {

SimulatedClock simulator_clock();

// Ends all ranks; the simulator reports it.
void abort_simulation();

// Gives free memory back: what one row needed is not there for the next one's ranks otherwise.
void release_free_memory();

}  // namespace oktopk
