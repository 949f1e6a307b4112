// SPDX-License-Identifier: Apache-2.0
// A program outside the repository that has an MPI communicator of its own. It is compiled and linked, and not run:
// tests/mpi has the behaviour.
#include "oktopk/comm/mpi_comm.h"
#include "oktopk/oktopk.h"

int main() {
  const oktopk::MpiSession session;
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return oktopk::make_mpi_communicator(MPI_COMM_WORLD)->size() == size ? 0 : 1;
}
