// SPDX-License-Identifier: Apache-2.0
// Transport "mpi" (transports.h) over a communicator of the program's own. The only public header that includes
// <mpi.h>. It is installed if the library was built with MPI: with CMake link oktopk::mpi; the flags of pkg-config have
// it, too.
#pragma once

// Leaves out the C++ bindings, which MPI has removed.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <memory>

#include "oktopk/comm/communicator.h"
#include "oktopk/comm/transports.h"

namespace oktopk {

// The ranks of `comm`, which is duplicated: the program's own messages cannot mix with ours, and the program may free
// `comm` at once. REQUIRES: MPI is initialised, comm is not MPI_COMM_NULL. Collective over `comm`; waits for ranks
// that start late for the timeout or kDefaultTimeout, whichever is longer.
std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm comm, const MpiOptions& options = {});

}  // namespace oktopk
