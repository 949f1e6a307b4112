// SPDX-License-Identifier: Apache-2.0
// MPI's own allreduce, to compare with. No MPI type appears here; without MPI (no_mpi_reference.cc)
// nothing is available.
#pragma once

#include <memory>
#include <span>

namespace oktopk {

class MpiReference {
 public:
  virtual ~MpiReference() = default;
  // Collective: x becomes the sum over the ranks, in place.
  virtual void allreduce(std::span<float> x) = 0;
};

// Collective over the first P ranks of the world. Null when MPI is not running.
std::unique_ptr<MpiReference> make_mpi_reference(int P);

}  // namespace oktopk
