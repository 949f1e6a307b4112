// SPDX-License-Identifier: Apache-2.0
// Worlds for tests: run_world(transport, P, body) runs `body` once per rank. In-process transports
// only; the checks that also run under MPI take a Communicator& and are called from tests/mpi.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string_view>
#include <type_traits>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/comm/transports.h"
#include "tests/support/tcp_world.h"

namespace oktopk {

inline constexpr int kWorldSizes[] = {1, 2, 3, 4, 5, 7, 8, 12};
inline constexpr std::string_view kTransports[] = {"threads", "tcp"};

// Long enough for a loaded machine under a sanitizer, short enough to see a hang as a failure.
inline constexpr Communicator::Duration kTestTimeout = std::chrono::seconds(30);

inline void run_world(std::string_view transport, int P, const std::function<void(Communicator&)>& body,
                      Communicator::Duration timeout = kTestTimeout) {
  if (transport == "tcp") return run_tcp(P, body, timeout);
  require(transport == "threads", "run_world: unknown transport \"", transport, "\"");
  run_threads(P, body, timeout);
}

// What `body` returns, by rank.
template <class Body>
auto gather_world(std::string_view transport, int P, Body body, Communicator::Duration timeout = kTestTimeout) {
  using Result = std::invoke_result_t<Body&, Communicator&>;
  static_assert(!std::is_same_v<Result, bool>, "ranks would share the words of a vector<bool>");
  std::vector<Result> results(static_cast<std::size_t>(P));
  run_world(
      transport, P, [&](Communicator& comm) { results[static_cast<std::size_t>(comm.rank())] = body(comm); }, timeout);
  return results;
}

}  // namespace oktopk
