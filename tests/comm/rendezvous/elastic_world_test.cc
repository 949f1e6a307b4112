// SPDX-License-Identifier: Apache-2.0
// Members as threads that leave and join. Members that are killed: tests/tcp/elastic_test.cc.
#include "oktopk/comm/elastic_world.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "tests/support/message.h"
#include "tests/support/tcp_world.h"
#include "tests/support/world.h"

namespace oktopk::tcp_elastic_test {
namespace {

using namespace std::chrono_literals;

TcpElasticOptions options_at(const RendezvousServer& server, int least) {
  TcpElasticOptions options{.least = least};
  options.tcp.rendezvous = server.address();
  options.tcp.secret = kTestSecret;
  options.tcp.timeout = kTestTimeout;
  return options;
}

// Not in the thread of the link, where it would end the process.
TEST(TcpElastic, bad_least_or_rendezvous_is_a_usage_error) {
  const RendezvousServer server({.secret = kTestSecret, .settle = 100ms});
  EXPECT_THROW(make_tcp_elastic_world(options_at(server, 0)), UsageError);
  for (const char* const bad : {"nowhere", "file:/tmp", ""}) {
    TcpElasticOptions options = options_at(server, 1);
    options.tcp.rendezvous = bad;
    EXPECT_THROW(make_tcp_elastic_world(options), UsageError) << bad;
  }
}

TEST(TcpElastic, member_that_is_not_let_in_says_why) {
  const auto expect = [](const TcpElasticOptions& options, const std::string& text) {
    expect_error<CommError>("did not answer in time; " + text, [&] { make_tcp_elastic_world(options); });
  };
  const RendezvousServer server({.secret = kTestSecret, .settle = 100ms});
  TcpElasticOptions three = options_at(server, 3);
  three.tcp.join_timeout = 1s;
  expect(three, "the first epoch needs 3 members; beside this one there are 0");
  const RendezvousServer other({.secret = kTestSecret, .settle = 100ms});
  TcpElasticOptions two = options_at(other, 2);
  two.tcp.join_timeout = 1s;
  {
    const auto member = make_tcp_elastic_world(options_at(other, 1));
    expect(two, "the job has 1 members, who let others in after a step");
  }
  expect(two, "all members have gone, and a new start needs 2 members; beside this one there are 0");
}

TEST(TcpElastic, member_that_leaves_is_lost_and_the_others_go_on) {
  const RendezvousServer server({.secret = kTestSecret, .settle = 100ms});
  run_ranks(5, [&](int) {
    const auto world = make_tcp_elastic_world(options_at(server, 5));
    EXPECT_EQ(world->membership().epoch, 1u);
    EXPECT_EQ(world->comm().size(), 5);
    barrier(world->comm());
    const int me = world->comm().rank();
    if (me == 1 || me == 4) return;
    const std::vector<MemberId> before = world->membership().ids;
    const Membership& next = world->regroup(static_cast<std::uint64_t>(10 + me));
    EXPECT_EQ(next.ids, (std::vector<MemberId>{before[0], before[2], before[3]}));
    EXPECT_EQ(next.lost, (std::vector<MemberId>{before[1], before[4]}));
    EXPECT_EQ(next.committed, 13u);
    barrier(world->comm());
    EXPECT_EQ(world->comm().size(), 3);
  });
}

TEST(TcpElastic, joiner_comes_in_at_the_next_regroup) {
  const RendezvousServer server({.secret = kTestSecret, .settle = 100ms});
  run_ranks(3, [&](int rank) {
    if (rank == 2) std::this_thread::sleep_for(100ms);  // most likely late; either way all three are in the end
    const auto world = make_tcp_elastic_world(options_at(server, 2));
    std::uint64_t steps = 0;
    while (world->comm().size() < 3) {
      Workspace work;
      const std::uint32_t seen =
          allreduce_small(world->comm(), std::uint32_t{world->has_joiners()}, Reduction::max, work);
      if (seen > 0) world->regroup(++steps);
    }
    EXPECT_EQ(world->membership().ids.size(), 3u);
    barrier(world->comm());
  });
}

}  // namespace
}  // namespace oktopk::tcp_elastic_test
