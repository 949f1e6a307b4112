// SPDX-License-Identifier: Apache-2.0
// A program outside the repository: three ranks as threads pass a number around a ring.
#include <atomic>
#include <cstdlib>
#include <span>

#include "oktopk/comm/mpi.h"
#include "oktopk/comm/threads.h"

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
  });
  // Whether MPI is there or not, the symbol is: the stub answers for an absent backend.
  static_cast<void>(oktopk::mpi_available());
  return sum == 93 ? EXIT_SUCCESS : EXIT_FAILURE;
}
