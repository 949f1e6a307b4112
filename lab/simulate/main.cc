// SPDX-License-Identifier: Apache-2.0
// The simulated program: every rank runs it under SimGrid's smpirun.
//   oktopk-simulated SPEC ROW    SPEC: a SimulationSpec (spec.h) as JSON; rank 0 writes a SimulatedRow to ROW.
// All ranks are in one process and run one at a time; no rank changes a global, so they need no copies of the program.
// Only this file and the MPI transport see the simulator's headers.
#include <fmt/format.h>
#include <mpi.h>
#include <simgrid/actor.h>

#include <array>
#include <exception>
#include <fstream>

#include "lab/simulate/spec.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/transports.h"

namespace oktopk {
namespace {

constexpr double kHostFlops = 1e9;  // of every host of platforms.cc: 1 Gf

SimulatedClock simulator_clock() {
  return {.now = [] { return MPI_Wtime(); },
          .sleep_until = [](double instant) { sg_actor_sleep_until(instant); },
          .compute = [](double seconds) { smpi_execute_flops_benched(seconds * kHostFlops); }};
}

// Ends all ranks; the simulator reports it.
void abort_simulation() { MPI_Abort(MPI_COMM_WORLD, 1); }

// For tests of the program that watches the simulator.
void provoke(Communicator& comm, const std::string& what) {
  if (comm.rank() != 0) return;
  if (what == "deadlock") {
    std::array<std::byte, 1> nothing{};
    Recv recv{comm.size() - 1, nothing, 0};
    comm.exchange({}, {&recv, 1});
  }
  if (what == "abort") abort_simulation();
  if (what == "error") fail<CommError>("provoked");
}

void run(const char* spec_file, const char* row_file) {
  const auto world = make_mpi_world({.blocking = true});
  std::ifstream in(spec_file);
  require(in.good(), "cannot read ", spec_file);
  const auto spec = nlohmann::json::parse(in).get<SimulationSpec>();
  require(world->size() == spec.P, "started with ", world->size(), " ranks instead of ", spec.P);
  provoke(*world, spec.provoke);
  const SimulatedRow row = simulate_row(*world, spec, simulator_clock());
  if (world->rank() == 0) std::ofstream(row_file) << nlohmann::json(row).dump();
}

}  // namespace
}  // namespace oktopk

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: smpirun ... oktopk-simulated SPEC ROW\n");
    return 2;
  }
  const oktopk::MpiSession session(oktopk::MpiThreads::first);
  try {
    oktopk::run(argv[1], argv[2]);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "oktopk-simulated: CRITICAL: {}\n", error.what());
    oktopk::abort_simulation();
    return 1;
  }
}
