// SPDX-License-Identifier: Apache-2.0
#include "tools/mpi_reference.h"

#include <mpi.h>

#include <climits>

#include "oktopk/base/error.h"
#include "oktopk/comm/mpi.h"

namespace oktopk {
namespace {

void check(int code, const char* what) {
  if (code != MPI_SUCCESS) fail<CommError>(what, " failed with MPI error ", code);
}

class Reference final : public MpiReference {
 public:
  explicit Reference(int P) {
    MPI_Group world, group;
    int range[1][3] = {{0, P - 1, 1}};
    check(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
    check(MPI_Group_range_incl(world, 1, range, &group), "MPI_Group_range_incl");
    check(MPI_Comm_create_group(MPI_COMM_WORLD, group, 0, &comm_), "MPI_Comm_create_group");
    MPI_Group_free(&group);
    MPI_Group_free(&world);
  }
  ~Reference() override { MPI_Comm_free(&comm_); }

  void allreduce(std::span<float> x) override {
    require(x.size() <= INT_MAX, "MPI_Allreduce of ", x.size(), " values: its count is an int");
    check(MPI_Allreduce(MPI_IN_PLACE, x.data(), static_cast<int>(x.size()), MPI_FLOAT, MPI_SUM, comm_),
          "MPI_Allreduce");
  }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace

std::unique_ptr<MpiReference> make_mpi_reference(int P) {
  if (!mpi_is_running()) return nullptr;
  return std::make_unique<Reference>(P);
}

}  // namespace oktopk
