// SPDX-License-Identifier: Apache-2.0
#include "tools/measure.h"

#include <mpi.h>

#include <climits>
#include <memory>

#include "oktopk/base/error.h"
#include "oktopk/comm/transports.h"

namespace oktopk {
namespace {

void check(int code, const char* what) {
  if (code != MPI_SUCCESS) fail<CommError>(what, " failed with MPI error ", code);
}

struct FreeComm {
  void operator()(MPI_Comm* comm) const {
    if (*comm != MPI_COMM_NULL) MPI_Comm_free(comm);
    delete comm;
  }
};

}  // namespace

MpiAllreduce make_mpi_allreduce(int P) {
  if (!mpi_is_running()) return {};
  const std::shared_ptr<MPI_Comm> comm(new MPI_Comm(MPI_COMM_NULL), FreeComm{});
  MPI_Group world, group;
  int range[1][3] = {{0, P - 1, 1}};
  check(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  check(MPI_Group_range_incl(world, 1, range, &group), "MPI_Group_range_incl");
  check(MPI_Comm_create_group(MPI_COMM_WORLD, group, 0, comm.get()), "MPI_Comm_create_group");
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  return [comm](std::span<float> x) {
    require(x.size() <= INT_MAX, "MPI_Allreduce of ", x.size(), " values: its count is an int");
    check(MPI_Allreduce(MPI_IN_PLACE, x.data(), static_cast<int>(x.size()), MPI_FLOAT, MPI_SUM, *comm),
          "MPI_Allreduce");
  };
}

}  // namespace oktopk
