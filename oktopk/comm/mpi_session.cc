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

MpiSession::MpiSession() {
  int initialised = 0;
  MPI_Initialized(&initialised);
  if (initialised != 0) return;
  int provided = 0;
  const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  if (code != MPI_SUCCESS) fail<CommError>("mpi: initialising: ", mpi_error_text(code));
  owns_ = true;
}

MpiSession::~MpiSession() {
  if (owns_ && mpi_is_running()) MPI_Finalize();
}

}  // namespace oktopk
