// SPDX-License-Identifier: Apache-2.0
// A program that already uses MPI hands its own communicator to oktopk. Run: mpirun -n 4
// build/examples/sum_mpi
#include <mpi.h>

#include <cstdio>
#include <vector>

#include "oktopk/oktopk.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  {
    const auto comm = oktopk::make_mpi_communicator(MPI_Comm_c2f(MPI_COMM_WORLD));
    constexpr oktopk::Index n = 1000;
    oktopk::Reducer reducer(*comm, n, {.preset = "oktopk", .k = 10});
    std::vector<float> gradient(n);
    for (oktopk::Index i = 0; i < n; ++i) gradient[i] = i % 100 == 0 ? 1.0F : 0.001F;
    const oktopk::SparseVector& sum = reducer.step(gradient).update;
    if (comm->rank() == 0)
      for (std::size_t j = 0; j < sum.size(); ++j)
        std::printf("[%u] %g\n", sum.idx[j], static_cast<double>(sum.val[j]));
  }
  MPI_Finalize();
}
