// SPDX-License-Identifier: Apache-2.0
// Where a subcommand runs: P threads of this process, or the processes that mpirun started. One
// body serves both; only the root of the whole command prints.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "oktopk/comm/communicator.h"
#include "oktopk/comm/mpi.h"

namespace oktopk {

// What a rank's body works with.
struct Station {
  Communicator& comm;
  // A communicator of the same ranks in a fresh world with a short timeout, to be ruined by a test
  // of faults. Collective.
  std::function<std::unique_ptr<Communicator>()> make_doomed;
};

class Worlds {
 public:
  // transport: "threads" or "mpi". UsageError otherwise, or when built without MPI.
  // in_place: as in MpiOptions.
  explicit Worlds(const std::string& transport, bool in_place = false);

  // The ranks to use when none are given: 4 threads, or all of MPI's.
  int default_size() const;
  // Whether this process prints. Always, with threads.
  bool is_root() const;

  // Whether ranks are processes, which share no memory.
  bool has_processes() const { return world_ != nullptr; }

  // Runs `body` on P ranks. With MPI, P may be smaller than the number of processes; the others
  // wait.
  void run(int P, const std::function<void(Station&)>& body);

 private:
  void run_on_threads(int P, const std::function<void(Station&)>& body);
  void run_on_mpi(int P, const std::function<void(Station&)>& body);

  std::unique_ptr<MpiSession> session_;
  std::unique_ptr<Communicator> world_;  // of MPI
};

}  // namespace oktopk
