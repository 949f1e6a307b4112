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
  // What one call sends on this rank.
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
    const std::vector<std::byte> mine(10), all(static_cast<std::size_t>(P) * 10);
    std::vector<std::byte> place(all.size());
    const std::vector<std::size_t> capacities(static_cast<std::size_t>(P), 99);
    const std::vector<std::span<const std::byte>> blocks(static_cast<std::size_t>(P), mine);

    Traffic traffic = traffic_of(comm, [](Communicator& c) { barrier(c); });
    EXPECT_EQ(traffic.messages_sent, log2_P);
    EXPECT_EQ(traffic.bytes_sent, 0u);
    traffic = traffic_of(comm, [&](Communicator& c) { broadcast(c, P / 2, place); });
    EXPECT_LE(traffic.messages_sent, log2_P);
    EXPECT_EQ(traffic.messages_received, comm.rank() == P / 2 ? 0u : 1u);
    traffic = traffic_of(comm, [&](Communicator& c) { allgather(c, mine, place, work); });
    EXPECT_EQ(traffic.messages_sent, log2_P);
    EXPECT_EQ(traffic.bytes_sent, others * 10);
    traffic = traffic_of(comm, [&](Communicator& c) { allgatherv(c, mine, capacities, out, work); });
    EXPECT_EQ(traffic.messages_sent, log2_P);
    EXPECT_EQ(traffic.bytes_sent, others * (1 + 10));  // the size takes one byte
    traffic = traffic_of(comm, [&](Communicator& c) { alltoall(c, all, place, work); });
    EXPECT_EQ(traffic.messages_sent, others);
    EXPECT_EQ(traffic.bytes_sent, others * 10);
    traffic = traffic_of(comm, [&](Communicator& c) { alltoallv(c, blocks, capacities, out, work); });
    EXPECT_EQ(traffic.messages_sent, others);
    EXPECT_EQ(traffic.bytes_sent, others * 10);
    traffic = traffic_of(comm, [&](Communicator& c) { allreduce_small(c, 1.0, Reduction::max, work); });
    EXPECT_EQ(traffic.messages_sent, log2_P);
    EXPECT_EQ(traffic.bytes_sent, log2_P * 16);
    traffic = traffic_of(comm, [&](Communicator& c) { allreduce_small(c, 1.0, Reduction::sum, work); });
    EXPECT_EQ(traffic.messages_sent, log2_P);
    EXPECT_EQ(traffic.bytes_sent, others * 16);
  });
}

TEST_P(Collectives, region_collectives_send_as_many_messages_as_the_skips) {
  const int P = GetParam();
  run_world("threads", P, [&](Communicator& comm) {
    Workspace work;
    const std::size_t n = static_cast<std::size_t>(P) * 4;
    const auto bytes = static_cast<std::uint64_t>(P - 1) * 4 * sizeof(float);
    const auto cuts = conformance::all_cuts(P, n).front();
    std::vector<float> data(n);
    for (const Skips& skips : conformance::all_skips(P)) {
      const auto phases = circulant_phases(skips);
      Traffic traffic = traffic_of(comm, [&](Communicator& c) { reduce_scatter(c, data, cuts, phases, work); });
      EXPECT_EQ(traffic.messages_sent, static_cast<std::uint64_t>(message_count(skips)));
      EXPECT_EQ(traffic.bytes_sent, bytes);
      traffic = traffic_of(comm, [&](Communicator& c) { allgather_regions(c, data, cuts, phases, work); });
      EXPECT_EQ(traffic.messages_sent, static_cast<std::uint64_t>(message_count(skips)));
      EXPECT_EQ(traffic.bytes_sent, bytes);
    }
    const Traffic traffic = traffic_of(comm, [&](Communicator& c) {
      ring_reduce_scatter(c, data, cuts, work);
      ring_allgather(c, data, cuts);
    });
    EXPECT_EQ(traffic.messages_sent, static_cast<std::uint64_t>(2 * (P - 1)));
    EXPECT_EQ(traffic.bytes_sent, 2 * bytes);
    std::vector<Bf16> halves(n);
    const auto phases = circulant_phases(halving_skips(P));
    for (const Traffic& t : {traffic_of(comm,
                                        [&](Communicator& c) {
                                          reduce_scatter(c, data, cuts, phases, work, conformance::kUpperHalf);
                                          allgather_regions(c, halves, cuts, phases, work);
                                        }),
                             traffic_of(comm, [&](Communicator& c) {
                               ring_reduce_scatter(c, data, cuts, work, conformance::kUpperHalf);
                               ring_allgather(c, halves, cuts);
                             })})
      EXPECT_EQ(t.bytes_sent, bytes);
  });
}

TEST_P(Collectives, reduce_scatter_repeats_its_bits_under_jitter) {
  const int P = GetParam();
  const auto sums = [&](bool has_jitter) {
    return gather_world("threads", P, [&](Communicator& comm) {
      JitterCommunicator jitter(comm, 5, std::chrono::microseconds(has_jitter ? 300 : 0));
      Workspace work;
      std::mt19937 random(static_cast<unsigned>(comm.rank()));
      std::vector<float> data(500);
      for (float& value : data) value = std::uniform_real_distribution<float>(-1, 1)(random);
      const auto cuts = conformance::all_cuts(P, data.size()).back();
      const auto phases = circulant_phases(grid_skips(P));
      reduce_scatter(jitter, data, cuts, phases, work);
      allgather_regions(jitter, data, cuts, phases, work);
      return data;
    });
  };
  const auto calm = sums(false);
  EXPECT_EQ(calm, sums(true));
  for (const auto& data : calm) EXPECT_EQ(data, calm.front());
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

TEST(Regions, bad_cuts_or_phases_are_usage_errors_before_anything_is_sent) {
  run_world("threads", 3, [](Communicator& comm) {
    Workspace work;
    std::vector<float> data(6);
    const auto phases = circulant_phases(direct_skips(3));
    const auto other = circulant_phases(direct_skips(4));
    using Cuts = std::vector<std::size_t>;
    for (const Cuts& cuts : {Cuts{0, 2, 6}, Cuts{0, 2, 4, 5}, Cuts{1, 2, 4, 6}, Cuts{0, 4, 2, 6}}) {
      EXPECT_THROW(reduce_scatter(comm, data, cuts, phases, work), UsageError);
      EXPECT_THROW(allgather_regions(comm, data, cuts, phases, work), UsageError);
      EXPECT_THROW(ring_reduce_scatter(comm, data, cuts, work), UsageError);
      EXPECT_THROW(ring_allgather(comm, data, cuts), UsageError);
    }
    EXPECT_THROW(reduce_scatter(comm, data, Cuts{0, 2, 4, 6}, other, work), UsageError);
    barrier(comm);
  });
}

// What a peer that lies about its blocks sends instead of allgatherv's message.
void expect_allgatherv_rejects(std::span<const std::byte> lie) {
  const std::vector<std::size_t> capacities{100, 100};
  run_world("threads", 2, [&](Communicator& comm) {
    Workspace work;
    Gathered out;
    if (comm.rank() == 1) {
      EXPECT_THROW(allgatherv(comm, {}, capacities, out, work), CommError);
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
  expect_allgatherv_rejects(prefixed(11, 10));
  expect_allgatherv_rejects(prefixed(9, 10));
  expect_allgatherv_rejects(prefixed(101, 90));
  expect_allgatherv_rejects(prefixed(~std::uint64_t{0}, 10));
  expect_allgatherv_rejects(prefixed(~std::uint64_t{0} - 7, 0));
}

}  // namespace
}  // namespace oktopk::collectives_test
