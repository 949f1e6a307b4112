// SPDX-License-Identifier: Apache-2.0
#include "tools/simulate/simulator.h"

#include <malloc.h>
#include <mpi.h>
#include <simgrid/actor.h>

namespace oktopk {
namespace {

constexpr double kHostFlops = 1e9;  // of every host of platforms.cc: 1 Gf

}  // namespace

SimulatedClock simulator_clock() {
  return {.now = [] { return MPI_Wtime(); },
          .sleep_until = [](double instant) { sg_actor_sleep_until(instant); },
          .compute = [](double seconds) { smpi_execute_flops_benched(seconds * kHostFlops); }};
}

void abort_simulation() { MPI_Abort(MPI_COMM_WORLD, 1); }

void release_free_memory() { malloc_trim(0); }

}  // namespace oktopk
