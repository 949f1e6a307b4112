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
#include "oktopk/laws/faults.h"
#include "tests/support/communicator_conformance.h"
#include "tests/support/message.h"
#include "tests/support/world.h"

namespace oktopk::communicator_test {
namespace {

using conformance::Check;
using conformance::kChecks;
using conformance::kShortTimeout;

class CommunicatorConformance : public testing::TestWithParam<std::tuple<std::string_view, int, Check>> {};

// Runs the check inside the decorator that `wrap` makes.
template <class Wrap>
void expect_holds(const std::tuple<std::string_view, int, Check>& param, const Wrap& wrap) {
  const auto& [transport, P, check] = param;
  const auto run = [&wrap, act = check.run](Communicator& comm) { wrap(comm, act); };
  run_world(transport, P, run, check.kills ? kShortTimeout : kTestTimeout);
}

TEST_P(CommunicatorConformance, holds) {
  expect_holds(GetParam(), [](Communicator& comm, auto run) { run(comm); });
}

TEST_P(CommunicatorConformance, holds_while_counted_and_traced) {
  expect_holds(GetParam(), [](Communicator& comm, auto run) {
    Trace trace;
    CountingCommunicator counting(comm);
    TracingCommunicator traced(counting, &trace);
    run(traced);
  });
}

TEST_P(CommunicatorConformance, holds_with_jitter) {
  expect_holds(GetParam(), [](Communicator& comm, auto run) {
    JitterCommunicator jitter(comm, 17, std::chrono::microseconds(100));
    run(jitter);
  });
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
    EXPECT_EQ(message_of([&] { comm.start({&send, 1}, {}); }), "start: send to rank 7 in a world of size 3");
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
