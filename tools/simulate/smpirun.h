// SPDX-License-Identifier: Apache-2.0
// Runs the simulated program under SimGrid's smpirun, in a temporary directory of its own, with the
// flags without which its times mean something else. SimGrid's exit code is 0 after a deadlock and
// after MPI_Abort: what it printed decides.
#pragma once

#include <string>
#include <vector>

#include "tools/simulate/platforms.h"
#include "tools/simulate/spec.h"

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
  std::vector<SimulatedRow> rows;
};

// True for a log that reports the end of a simulation that did not finish its work.
bool reports_failure(const std::string& log);

// failed: besides, unless there is a row for every size and preset.
SimulatedRun run_simulator(const SimulatorPrograms& programs, const Platform& platform, const SlowLink& slow_link,
                           const SimulationSpec& spec);

}  // namespace oktopk
