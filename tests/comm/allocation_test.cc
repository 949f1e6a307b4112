// SPDX-License-Identifier: Apache-2.0
// Warm exchanges and collectives allocate nothing: this program counts what each thread allocates.
#include <gtest/gtest.h>

#include <vector>

#include "oktopk/comm/collectives.h"
#include "oktopk/comm/decorators.h"
#include "tests/support/allocations.h"
#include "tests/support/collectives_conformance.h"
#include "tests/support/world.h"

namespace oktopk::allocation_test {
namespace {

TEST(Allocation, warm_collectives_allocate_nothing) {
  for (const int P : {1, 2, 5, 8}) {
    run_world("threads", P, [&](Communicator& inner) {
      CountingCommunicator comm(inner);
      const auto ranks = static_cast<std::size_t>(P);
      Workspace work;
      Gathered gathered;
      std::vector<std::byte> mine(100), all(ranks * 100);
      std::vector<float> data(ranks * 10);
      std::vector<std::size_t> cuts(ranks + 1);
      for (std::size_t r = 0; r <= ranks; ++r) cuts[r] = r * 10;
      const std::vector<std::size_t> capacities(ranks, 100);
      std::size_t before = 0;
      for (int round = 0; round < 4; ++round) {
        if (round == 2) before = allocations_of_this_thread();
        barrier(comm);
        broadcast(comm, P - 1, mine);
        allgather(comm, mine, all, work);
        allgatherv(comm, mine, capacities, gathered);
        for (const DenseRounds rounds : conformance::kDenseRounds) {
          dense_reduce_scatter(comm, data, cuts, rounds, work);
          dense_reduce_scatter(comm, data, cuts, rounds, work, conformance::kUpperHalf);
          dense_allgather(comm, std::as_writable_bytes(std::span(data)), sizeof(float), cuts, rounds, work);
        }
        allreduce_small(comm, 1.0, Reduction::max, work);
      }
      EXPECT_EQ(allocations_of_this_thread() - before, 0u) << "P = " << P << ", rank " << comm.rank();
    });
  }
}

}  // namespace
}  // namespace oktopk::allocation_test
