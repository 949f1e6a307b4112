// SPDX-License-Identifier: Apache-2.0
// The collectives on every in-process transport and world size: results, messages, faults.
#include "oktopk/comm/collectives.h"

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <string>
#include <tuple>

#include "oktopk/comm/decorators.h"
#include "tests/support/collectives_conformance.h"
#include "tests/support/world.h"

namespace oktopk::collectives_test {
namespace {

using conformance::Check;
using conformance::kCollectiveChecks;

class CollectivesConformance : public testing::TestWithParam<std::tuple<std::string_view, int, Check>> {};

TEST_P(CollectivesConformance, holds) {
  const auto& [transport, P, check] = GetParam();
  run_world(transport, P, check.run);
}

INSTANTIATE_TEST_SUITE_P(All, CollectivesConformance,
                         testing::Combine(testing::ValuesIn(kTransports), testing::ValuesIn(kWorldSizes),
                                          testing::ValuesIn(kCollectiveChecks)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + "_" + std::to_string(std::get<1>(test.param)) +
                                  "_" + std::get<2>(test.param).name;
                         });

class Collectives : public testing::TestWithParam<int> {
 protected:
  // traffic_of() counts what one call sends on this rank.
  template <class Call>
  static Traffic traffic_of(Communicator& comm, Call call) {
    CountingCommunicator counting(comm);
    call(counting);
    return counting.traffic();
  }
};

INSTANTIATE_TEST_SUITE_P(All, Collectives, testing::ValuesIn(kWorldSizes), testing::PrintToStringParamName());

TEST_P(Collectives, send_as_many_messages_and_bytes_as_stated) {
  const int P = GetParam();
  const auto log2_P = static_cast<std::uint64_t>(std::bit_width(static_cast<unsigned>(P - 1)));
  const auto others = static_cast<std::uint64_t>(P - 1);
  run_world("threads", P, [&](Communicator& comm) {
    Workspace work;
    Gathered out;
    const std::vector<std::byte> mine(10);
    std::vector<std::byte> place(static_cast<std::size_t>(P) * 10);
    const std::vector<std::size_t> capacities(static_cast<std::size_t>(P), 99);

    Traffic traffic = traffic_of(comm, [](Communicator& c) { barrier(c); });
    EXPECT_EQ(traffic.messages_sent, log2_P);
    EXPECT_EQ(traffic.bytes_sent, 0u);
    traffic = traffic_of(comm, [&](Communicator& c) { broadcast(c, P / 2, place); });
    EXPECT_LE(traffic.messages_sent, log2_P);
    EXPECT_EQ(traffic.messages_received, comm.rank() == P / 2 ? 0u : 1u);
    traffic = traffic_of(comm, [&](Communicator& c) { allgather(c, mine, place, work); });
    EXPECT_EQ(traffic.messages_sent, log2_P);
    EXPECT_EQ(traffic.bytes_sent, others * (10 + kCheckBytes));
    std::vector<std::byte> came(place.size());
    traffic = traffic_of(comm, [&](Communicator& c) { alltoall(c, place, came, work); });
    EXPECT_EQ(traffic.messages_sent, others);
    EXPECT_EQ(traffic.bytes_sent, others * (10 + kCheckBytes));
    traffic = traffic_of(comm, [&](Communicator& c) { allgatherv(c, mine, capacities, out); });
    EXPECT_EQ(traffic.messages_sent, log2_P);
    EXPECT_EQ(traffic.bytes_sent, others * (1 + 10));  // the size takes one byte
    traffic = traffic_of(comm, [&](Communicator& c) { require_equal(c, "test", "n = 1", work); });
    EXPECT_EQ(traffic.messages_sent, log2_P);
    EXPECT_EQ(traffic.bytes_sent, others * kAgreementBytes);
    traffic = traffic_of(comm, [&](Communicator& c) { allreduce_small(c, 1.0, Reduction::max, work); });
    EXPECT_EQ(traffic.messages_sent, log2_P);
    EXPECT_EQ(traffic.bytes_sent, log2_P * 16);
    traffic = traffic_of(comm, [&](Communicator& c) { allreduce_small(c, 1.0, Reduction::sum, work); });
    EXPECT_EQ(traffic.messages_sent, log2_P);
    EXPECT_EQ(traffic.bytes_sent, others * 16);
  });
}

TEST(Alltoall, block_q_of_rank_r_is_block_r_on_rank_q) {
  for (const int P : kWorldSizes)
    run_world("threads", P, [&](Communicator& comm) {
      Workspace work;
      const auto at = [&](int from, int to) { return static_cast<std::byte>(from * 16 + to); };
      std::vector<std::byte> mine, all(static_cast<std::size_t>(P) * 3), expected;
      for (int q = 0; q < P; ++q) mine.insert(mine.end(), 3, at(comm.rank(), q));
      for (int r = 0; r < P; ++r) expected.insert(expected.end(), 3, at(r, comm.rank()));
      alltoall(comm, mine, all, work);
      EXPECT_EQ(all, expected);
      all.resize(all.size() + 1);
      EXPECT_THROW(alltoall(comm, mine, all, work), UsageError);
    });
}

TEST(Barrier, returns_only_after_all_have_entered) {
  std::atomic<int> entered = 0;
  run_world("threads", 5, [&](Communicator& comm) {
    for (int round = 1; round <= 20; ++round) {
      ++entered;
      barrier(comm);
      EXPECT_GE(entered.load(), round * 5);
      barrier(comm);
    }
  });
}

// `lie` is sent in place of allgatherv's message by a peer that lies about its blocks.
void expect_allgatherv_rejects(std::span<const std::byte> lie) {
  const std::vector<std::size_t> capacities{100, 100};
  run_world("threads", 2, [&](Communicator& comm) {
    Gathered out;
    if (comm.rank() == 1) {
      EXPECT_THROW(allgatherv(comm, {}, capacities, out), CommError);
      EXPECT_THROW(barrier(comm), CommError);
    } else {
      std::vector<std::byte> place(300);
      const Send send{1, lie};
      Recv recv{1, place, 0};
      try {
        comm.exchange({&send, 1}, {&recv, 1});
      } catch (const CommError&) {
        // The other rank may have ended the world while this one still waited to wake.
      }
    }
  });
}

TEST(Allgatherv, lying_sizes_are_comm_errors) {
  const auto prefixed = [](std::uint64_t size, std::size_t bytes) {
    std::vector<std::byte> block(sizeof(size) + bytes);
    std::memcpy(block.data(), &size, sizeof(size));
    return block;
  };
  expect_allgatherv_rejects({});
  expect_allgatherv_rejects(std::vector<std::byte>(7));
  std::vector<std::byte> too_large(1 + 101);  // all of it is there
  too_large[0] = std::byte{101};
  expect_allgatherv_rejects(too_large);
  expect_allgatherv_rejects(prefixed(11, 10));
  expect_allgatherv_rejects(prefixed(9, 10));
  expect_allgatherv_rejects(prefixed(101, 90));
  expect_allgatherv_rejects(prefixed(~std::uint64_t{0}, 10));
  expect_allgatherv_rejects(prefixed(~std::uint64_t{0} - 7, 0));
}

}  // namespace
}  // namespace oktopk::collectives_test
