// SPDX-License-Identifier: Apache-2.0
// Starting and ending MPI (mpi.h).
#include "oktopk/base/error.h"
#include "oktopk/comm/mpi.h"
#include "oktopk/comm/mpi_calls.h"

namespace oktopk {

bool mpi_available() { return true; }

bool mpi_is_running() {
  int initialised = 0;
  int finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  return initialised != 0 && finalised == 0;
}

MpiSession::MpiSession(MpiThreads threads) {
  int initialised = 0;
  MPI_Initialized(&initialised);
  if (initialised != 0) return;
  const int needed = threads == MpiThreads::any ? MPI_THREAD_SERIALIZED : MPI_THREAD_SINGLE;
  int provided = MPI_THREAD_SINGLE;
  const int code = MPI_Init_thread(nullptr, nullptr, needed, &provided);
  if (code != MPI_SUCCESS) fail<CommError>("mpi: initialising: ", mpi_error_text(code));
  if (provided < needed) {
    MPI_Finalize();
    fail<CommError>("mpi: this MPI gives ", mpi_thread_level(provided), ", but ", mpi_thread_level(needed),
                    " is needed: use an MPI with thread support, or ",
                    "MpiSession(MpiThreads::first) and no BucketedReducer");
  }
  owns_ = true;
}

MpiSession::~MpiSession() {
  if (owns_ && mpi_is_running()) MPI_Finalize();
}

}  // namespace oktopk
