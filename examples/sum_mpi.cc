// SPDX-License-Identifier: Apache-2.0
// A program that already uses MPI hands its own communicator to oktopk. Run: mpirun -n 4 build/examples/sum_mpi
#include <mpi.h>

#include <cstdio>
#include <vector>

#include "oktopk/comm/mpi_comm.h"
#include "oktopk/oktopk.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  {
    const auto comm = oktopk::make_mpi_communicator(MPI_COMM_WORLD);
    constexpr oktopk::Index n = 1000;
    oktopk::ReducerOptions options;
    options.preset = "oktopk";
    options.k = 10;
    oktopk::Reducer reducer(*comm, n, options);
    std::vector<float> gradient(n);
    for (oktopk::Index i = 0; i < n; ++i) gradient[i] = i % 100 == 0 ? 1.0F : 0.001F;
    const oktopk::Update mean = reducer.step(gradient);
    if (comm->rank() == 0) mean.for_each([](oktopk::Index i, float x) { std::printf("[%u] %g\n", i, double{x}); });
  }
  MPI_Finalize();
}
