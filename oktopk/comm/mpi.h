// SPDX-License-Identifier: Apache-2.0
// Transport "mpi": the ranks of an MPI program (OpenMPI, MPICH). No MPI type appears here; mpi_comm.h takes an
// MPI_Comm. Waits poll and yield, so that more ranks than cores progress. In a library built without MPI (no_mpi.cc)
// mpi_available() is false and the rest throws UsageError.
#pragma once

#include <cstddef>
#include <memory>

#include "oktopk/comm/communicator.h"

namespace oktopk {

bool mpi_available();
// Whether MPI is initialised and not yet finalised, by whomever.
bool mpi_is_running();

// The threads that call MPI, one at a time.
enum class MpiThreads { first, any };

// Initialises MPI unless the program already did, and finalises what it initialised. CommError when this MPI does not
// allow those threads (any: MPI_THREAD_SERIALIZED). See also Communicator::require_any_thread().
class MpiSession {
 public:
  explicit MpiSession(MpiThreads threads = MpiThreads::any);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

 private:
  [[maybe_unused]] bool owns_ = false;  // unused by no_mpi.cc
};

struct MpiOptions {
  Communicator::Duration timeout = Communicator::kDefaultTimeout;
  // Above this many bytes a message is described by a derived datatype of such chunks, because MPI counts are int.
  // Tests lower it.
  std::size_t chunk_bytes = std::size_t{1} << 30;
  // MPI reads and writes the buffers given to start() where they lie, which saves a copy of each message. REQUIRES:
  // after a CommError no such buffer is freed before the program ends, because a message that has begun cannot be
  // taken back (docs/errors.md). If false, buffers are free as soon as wait() has thrown.
  bool in_place = false;
  // Waits inside MPI instead of polling: no timeout. For a simulator of MPI, in which polling would take simulated
  // time and which detects deadlocks itself. Implies in_place.
  bool blocking = false;
};

// All ranks of the program (MPI_COMM_WORLD, duplicated). REQUIRES: MPI is initialised (see MpiSession). Collective;
// waits for ranks that start late for the timeout or kDefaultTimeout, whichever is longer.
std::unique_ptr<Communicator> make_mpi_world(const MpiOptions& options = {});

}  // namespace oktopk
