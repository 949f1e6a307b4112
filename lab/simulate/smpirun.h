// SPDX-License-Identifier: Apache-2.0
// Runs the simulated program under SimGrid's smpirun, in a temporary directory of its own, with the flags that make its
// times those of the platform. SimGrid's exit code is 0 after a deadlock and after MPI_Abort, so the log decides.
#pragma once

#include <string>

#include "lab/simulate/platforms.h"
#include "lab/simulate/spec.h"

namespace oktopk {

// Where the two programs are. UsageError says what to install when one is not there.
struct SimulatorPrograms {
  std::string smpirun;
  std::string simulated;  // beside this program
};
SimulatorPrograms find_simulator();

struct SimulatedRun {
  bool failed = false;
  std::string log;  // all that was printed
  SimulatedRow row;
};

// True for the log of a simulation that did not finish its work.
bool reports_failure(const std::string& log);

// Links are spec.scale times slower than the platform's. CommError when a signal ended the simulation.
SimulatedRun run_simulator(const SimulatorPrograms& programs, const Platform& platform, const SlowLink& slow_link,
                           const SimulationSpec& spec);

}  // namespace oktopk
