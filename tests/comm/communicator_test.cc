// SPDX-License-Identifier: Apache-2.0
// CommunicatorConformance: the checks of communicator_conformance.h on every in-process transport
// and world size, plain and inside the decorators that must not be noticed.
#include "oktopk/comm/communicator.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <tuple>

#include "oktopk/comm/decorators.h"
#include "tests/support/communicator_conformance.h"
#include "oktopk/laws/faults.h"
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

// Rank 0 of 4, whose messages take a while. Alone: nothing but the wait is measured.
class SlowCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 4; }
  std::string_view transport() const override { return "slow"; }
  Duration timeout() const override { return kDefaultTimeout; }
  std::unique_ptr<Communicator> split(int, int) override { fail<CommError>("no split"); }
  std::uint64_t begin(std::span<const Send>, std::span<Recv>) override { return 0; }
  void finish(std::uint64_t) override { std::this_thread::sleep_for(kDelay); }
  void abandon(std::uint64_t) noexcept override {}

  static constexpr auto kDelay = std::chrono::milliseconds(2);
};

TEST(Communicator, waits_are_counted_by_peer) {
  SlowCommunicator comm;
  std::array<Recv, 3> recvs = {Recv{2, {}}, Recv{3, {}}, Recv{0, {}}};
  EXPECT_TRUE(comm.waited_so_far().by_peer.empty());
  const auto begin = std::chrono::steady_clock::now();
  comm.exchange({}, recvs);                      // ranks 2 and 3 have one half each; the message to oneself has none
  comm.exchange({}, std::span(recvs).first(1));  // rank 2
  const auto end = std::chrono::steady_clock::now();
  const WaitTimes waited = comm.waited_so_far();
  ASSERT_EQ(waited.by_peer.size(), 4u);
  EXPECT_GE(waited.all, 2 * SlowCommunicator::kDelay);
  EXPECT_LE(waited.all, end - begin);
  EXPECT_EQ(waited.by_peer[0] + waited.by_peer[1], Communicator::Duration::zero());
  EXPECT_GE(waited.by_peer[3], SlowCommunicator::kDelay / 2);
  EXPECT_GE(waited.by_peer[2], waited.by_peer[3] + SlowCommunicator::kDelay);
  EXPECT_LE(waited.by_peer[2] + waited.by_peer[3], waited.all);
}

}  // namespace
}  // namespace oktopk::communicator_test
