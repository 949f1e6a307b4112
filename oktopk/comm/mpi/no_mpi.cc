// SPDX-License-Identifier: Apache-2.0
// Stands in for mpi.cc where the library is built without MPI.
#include "oktopk/base/error.h"
#include "oktopk/comm/transports.h"

namespace oktopk {
namespace {

[[noreturn]] void fail_absent() {
  fail<UsageError>("mpi: this library was built without MPI; use the transport \"threads\"");
}

}  // namespace

bool mpi_available() { return false; }
bool mpi_is_running() { return false; }

MpiSession::MpiSession(MpiThreads) { fail_absent(); }
MpiSession::~MpiSession() = default;

std::unique_ptr<Communicator> make_mpi_world(const MpiOptions&) { fail_absent(); }

}  // namespace oktopk
