// SPDX-License-Identifier: Apache-2.0
// MPI's own allreduce, to compare with. No MPI type appears here.
#pragma once

#include <functional>
#include <span>

namespace oktopk {

// Sums x over the ranks, in place. Collective.
using MpiAllreduce = std::function<void(std::span<float> x)>;

// Collective over the first P ranks of the world. Empty if MPI is not running or not in this build.
MpiAllreduce make_mpi_allreduce(int P);

}  // namespace oktopk
