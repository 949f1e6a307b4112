// SPDX-License-Identifier: Apache-2.0
// Transport "mpi": the ranks of an MPI communicator (OpenMPI, MPICH). No MPI type appears here; a
// user's communicator comes in as its Fortran handle (MPI_Comm_c2f), and is duplicated, so that the
// user's own messages cannot mix with ours. Waits poll with yielding: more ranks than cores
// progress. Built without MPI (no_mpi.cc), mpi_available() is false and the rest throws UsageError.
#pragma once

#include <memory>

#include "oktopk/comm/communicator.h"

namespace oktopk {

bool mpi_available();
// MPI is initialised and not yet finalised, by whomever.
bool mpi_is_running();

// From which threads MPI is called, one at a time.
enum class MpiThreads { first, any };

// Initialises MPI unless the program already did, and finalises what it initialised. CommError when
// this MPI does not allow those threads (any: MPI_THREAD_SERIALIZED). Where the program initialised
// MPI, whoever needs another thread asks: Communicator::require_any_thread().
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
  // Above this many bytes a message is described by a derived datatype of such chunks, because MPI
  // counts are int. Tests lower it.
  std::size_t chunk_bytes = std::size_t{1} << 30;
  // MPI reads and writes the buffers given to start() where they lie, which saves a copy of what is
  // sent and of what arrives. REQUIRES: after a CommError no such buffer is freed before the
  // program ends, since a message that has begun cannot be taken back (docs/errors.md). Not set,
  // buffers are free as soon as wait() has thrown.
  bool in_place = false;
  // Waits inside MPI instead of polling: no timeout. For a simulator of MPI, where polling would
  // take simulated time, and which sees by itself that nobody can go on. In place, too.
  bool blocking = false;
};

// REQUIRES: MPI is initialised (see MpiSession). Collective over the communicator; waits for ranks
// that start late for the timeout or kDefaultTimeout, whichever is longer.
std::unique_ptr<Communicator> make_mpi_world(const MpiOptions& options = {});
std::unique_ptr<Communicator> make_mpi_communicator(int fortran_handle, const MpiOptions& options = {});

}  // namespace oktopk
