// SPDX-License-Identifier: Apache-2.0
// The simulated transport keeps the contract of every transport, in fair weather and in foul.
#include "tests/faults/fault_communicator.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>

#include "tests/support/communicator_conformance.h"

namespace oktopk::faults::fault_communicator_test {

void run_simulated(int P, std::uint64_t seed, Duration timeout, const std::function<void(Communicator&)>& body) {
  Scheduler scheduler(seed);
  const Weather weather = seed % 2 == 0 ? Weather{} : Weather{.slow = 0.2, .stall = 0.2};
  Network network(scheduler, weather);
  World* world = nullptr;
  std::vector<int> actors;
  for (int rank = 0; rank < P; ++rank)
    actors.push_back(scheduler.add("rank " + std::to_string(rank), [&, rank] {
      FaultCommunicator comm(network, *world, rank, weather.stall);
      body(comm);
    }));
  world = &network.open(actors, timeout);
  scheduler.run();
  for (const std::string& failure : scheduler.failures()) ADD_FAILURE() << failure << "\n" << scheduler.report();
}

class FaultCommunicatorKeeps : public testing::TestWithParam<conformance::Check> {};

TEST_P(FaultCommunicatorKeeps, contract) {
  for (const int P : {1, 2, 3, 5, 8})
    for (const std::uint64_t seed : {2, 3})
      run_simulated(P, seed, GetParam().kills ? conformance::kShortTimeout : Duration(std::chrono::hours(1)),
                    GetParam().run);
}

INSTANTIATE_TEST_SUITE_P(, FaultCommunicatorKeeps, testing::ValuesIn(conformance::kChecks),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace oktopk::faults::fault_communicator_test
