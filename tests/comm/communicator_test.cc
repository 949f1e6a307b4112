// SPDX-License-Identifier: Apache-2.0
// CommunicatorConformance: the checks of communicator_conformance.h on every in-process transport
// and world size, plain and inside the decorators that must not be noticed.
#include "oktopk/comm/communicator.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "oktopk/comm/decorators.h"
#include "tests/support/communicator_conformance.h"
#include "tests/support/faults.h"
#include "tests/support/world.h"

namespace oktopk::communicator_test {
namespace {

using conformance::Check;
using conformance::kChecks;
using conformance::kShortTimeout;

class CommunicatorConformance : public testing::TestWithParam<std::tuple<std::string_view, int, Check>> {};

TEST_P(CommunicatorConformance, holds) {
  const auto& [transport, P, check] = GetParam();
  run_world(transport, P, check.run, check.kills ? kShortTimeout : kTestTimeout);
}

TEST_P(CommunicatorConformance, holds_while_counted) {
  const auto& [transport, P, check] = GetParam();
  const auto run = check.run;
  run_world(
      transport, P,
      [&](Communicator& comm) {
        CountingCommunicator counting(comm);
        run(counting);
      },
      check.kills ? kShortTimeout : kTestTimeout);
}

TEST_P(CommunicatorConformance, holds_with_jitter) {
  const auto& [transport, P, check] = GetParam();
  const auto run = check.run;
  run_world(
      transport, P,
      [&](Communicator& comm) {
        JitterCommunicator jitter(comm, 17, std::chrono::microseconds(100));
        run(jitter);
      },
      check.kills ? kShortTimeout : kTestTimeout);
}

INSTANTIATE_TEST_SUITE_P(All, CommunicatorConformance,
                         testing::Combine(testing::ValuesIn(kTransports), testing::ValuesIn(kWorldSizes),
                                          testing::ValuesIn(kChecks)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + "_" + std::to_string(std::get<1>(test.param)) +
                                  "_" + std::get<2>(test.param).name;
                         });

TEST(Communicator, start_with_bad_peer_names_peer_and_size) {
  run_world("threads", 3, [](Communicator& comm) {
    const Send send{7, {}};
    try {
      comm.start({&send, 1}, {});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("rank 7"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("size 3"), std::string::npos) << error.what();
    }
  });
}

}  // namespace
}  // namespace oktopk::communicator_test
