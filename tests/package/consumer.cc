// SPDX-License-Identifier: Apache-2.0
// A program outside the repository: three ranks as threads pass a number around a ring and average a gradient.
#include <atomic>
#include <cstdlib>
#include <span>
#include <vector>

#include "oktopk/oktopk.h"

int main() {
  std::atomic<int> sum = 0;
  oktopk::run_threads(3, [&](oktopk::Communicator& comm) {
    const int next = (comm.rank() + 1) % comm.size();
    const int previous = (comm.rank() + comm.size() - 1) % comm.size();
    const int mine = 10 * comm.size() + comm.rank();
    int received = 0;

    const oktopk::Send send{.peer = next, .bytes = std::as_bytes(std::span(&mine, 1))};
    oktopk::Recv recv{.peer = previous, .buffer = std::as_writable_bytes(std::span(&received, 1))};
    comm.exchange(std::span(&send, 1), std::span(&recv, 1));
    if (recv.size == sizeof(int) && received == 30 + previous) sum += received;

    oktopk::Reducer reducer(comm, 1000);
    std::vector<float> weights(1000);
    reducer.step(std::vector<float>(1000, 1.0F)).subtract_from(weights);
    if (weights[0] == -1.0F) sum += 1;
  });
  // The symbol exists with and without MPI: a stub answers for an absent backend.
  static_cast<void>(oktopk::mpi_available());
  return sum == 96 ? EXIT_SUCCESS : EXIT_FAILURE;
}
