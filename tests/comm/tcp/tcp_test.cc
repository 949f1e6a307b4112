// SPDX-License-Identifier: Apache-2.0
// The transport's own properties: encryption, one reason on all ranks, bounds, threads. The conformance suites run on
// it in communicator_test.cc and collectives_test.cc; real processes die in tests/tcp.
#include "oktopk/comm/transports.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/base/random.h"
#include "oktopk/comm/collectives.h"
#include "tests/support/communicator_conformance.h"
#include "tests/support/message.h"
#include "tests/support/tcp_world.h"
#include "tests/support/world.h"

namespace oktopk::tcp_test {
namespace {

using conformance::Check;
using conformance::Message;
using conformance::message;
using conformance::receive_from;

// Runs the body on P ranks whose options `change` has changed.
template <class Change>
void run_changed(int P, Change change, const std::function<void(Communicator&)>& body) {
  const KeyValueStore store = make_memory_store();
  run_ranks(P, [&](int rank) {
    TcpOptions options = tcp_options(rank, P, store, kTestTimeout);
    change(options);
    const auto comm = make_tcp_world(options);
    body(*comm);
  });
}

class TcpSealed : public testing::TestWithParam<Check> {};

TEST_P(TcpSealed, transport_conforms) {
  const Check check = GetParam();
  const auto change = [&](TcpOptions& options) {
    options.encrypt = true;
    if (check.kills) options.timeout = conformance::kShortTimeout;
  };
  run_changed(3, change, check.run);
}

INSTANTIATE_TEST_SUITE_P(All, TcpSealed, testing::ValuesIn(conformance::kChecks),
                         [](const auto& test) { return test.param.name; });

TEST(Tcp, all_ranks_hear_the_same_reason_at_once) {
  run_world("tcp", 5, [&](Communicator& comm) {
    if (comm.rank() == 2) return comm.kill();
    const int peer = neighbour(comm, comm.rank() == 1 ? -1 : 1);
    EXPECT_EQ(message_of<CommError>([&] { receive_from(comm, peer); }),
              text_of("tcp: rank ", comm.rank(), ": the world is dead: rank 2 abandoned an exchange"));
  });
}

TEST(Tcp, rank_that_left_is_named_by_those_who_wait_for_it) {
  run_world("tcp", 3, [&](Communicator& comm) {
    if (comm.rank() == 1) return;
    const std::string text = message_of<CommError>([&] { receive_from(comm, 1); });
    expect_contains(text, "rank 1");
    expect_contains(text, "left");
  });
}

TEST(Tcp, world_outlives_its_parts_and_parts_the_world) {
  run_world("tcp", 5, [&](Communicator& comm) {
    for (int i = 0; i < 20; ++i) barrier(*comm.split(comm.rank() % 2, 0));
    barrier(comm);
  });
}

TEST(Tcp, early_messages_beyond_the_bound_wait_and_arrive_in_order) {
  constexpr int kMessages = 50;
  run_changed(
      3, [](TcpOptions& options) { options.early_bytes = 100'000; },
      [&](Communicator& comm) {
        std::vector<Message> out, in(kMessages, Message(60'000));
        for (int i = 0; i < kMessages; ++i) out.push_back(message(comm.rank(), 0, i, 50'000));
        std::vector<Pending> pendings;
        std::vector<Send> sends;
        for (const Message& one : out) sends.push_back({neighbour(comm, 1), one});
        for (const Send& send : sends) pendings.push_back(comm.start({&send, 1}, {}));
        for (int i = 0; i < kMessages; ++i) {
          Recv recv{neighbour(comm, -1), in[static_cast<std::size_t>(i)], 0};
          comm.exchange({}, {&recv, 1});
          ASSERT_EQ(conformance::arrived(recv), message(neighbour(comm, -1), 0, i, 50'000));
        }
        for (Pending& pending : pendings) pending.wait();
      });
}

// Rank 1 waits in the second part before it posts the receive of the first: the large message must not be in the way.
TEST(Tcp, early_message_of_one_part_does_not_hold_up_another) {
  run_changed(
      2, [](TcpOptions& options) { options.early_bytes = 100'000; },
      [&](Communicator& comm) {
        const auto first = comm.split(0, comm.rank()), second = comm.split(0, comm.rank());
        const Message large = message(0, 0, 0, 10'000'000), small = message(0, 0, 1, 1000);
        if (comm.rank() == 0) {
          const Send one{1, large}, two{1, small};
          Pending pending = first->start({&one, 1}, {});
          second->exchange({&two, 1}, {});
          pending.wait();
        } else {
          Message in(small.size()), much(large.size());
          Recv two{0, in, 0}, one{0, much, 0};
          second->exchange({}, {&two, 1});
          EXPECT_EQ(in, small);
          first->exchange({}, {&one, 1});
          EXPECT_TRUE(much == large);
        }
        barrier(comm);
      });
}

// Message i of a part, of any size up to 90,000 bytes.
Message message_in(int from, std::size_t part, std::size_t i) {
  return message(from, static_cast<int>(part), static_cast<int>(i), (part * 7919 + i * 104'729) % 90'000);
}

// Starts all sends at once, and receives part by part in an order of its own, so that every rank has messages of all
// sizes for which nobody waits yet.
void receive_parts_in_any_order(Communicator& comm, std::uint64_t seed) {
  constexpr std::size_t kParts = 5, kMessages = 8;
  const std::array peers = {neighbour(comm, 1), neighbour(comm, -1)};
  std::vector<std::unique_ptr<Communicator>> parts;
  std::vector<std::size_t> order;
  for (std::size_t part = 0; part < kParts; ++part) {
    parts.push_back(comm.split(0, comm.rank()));
    order.push_back(part);
  }
  std::list<Message> sent;
  std::vector<Pending> pendings;
  for (std::size_t i = 0; i < kMessages; ++i)
    for (std::size_t part = 0; part < kParts; ++part)
      for (const int peer : peers) {
        const Send send{peer, sent.emplace_back(message_in(comm.rank(), part, i))};
        pendings.push_back(parts[part]->start({&send, 1}, {}));
      }
  Random random(seed, static_cast<std::uint64_t>(comm.rank()));
  for (std::size_t i = kParts; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  Message in(90'000);
  for (const std::size_t part : order)
    for (const int peer : peers)
      for (std::size_t i = 0; i < kMessages; ++i) {
        Recv recv{peer, in, 0};
        parts[part]->exchange({}, {&recv, 1});
        ASSERT_EQ(conformance::arrived(recv), message_in(peer, part, i));
      }
  for (Pending& pending : pendings) pending.wait();
  barrier(comm);
}

TEST(Tcp, receives_of_parts_in_any_order_never_deadlock) {
  for (const std::size_t early : {0, 1, 1000, 100'000})
    run_changed(
        3, [&](TcpOptions& options) { options.early_bytes = early; },
        [&](Communicator& comm) { receive_parts_in_any_order(comm, early); });
}

TEST(Tcp, large_exchange_goes_on_while_nobody_waits) {
  run_world("tcp", 2, [&](Communicator& comm) {
    const Message out = message(comm.rank(), 0, 0, 20'000'000);
    Message in(out.size());
    const Send send{1 - comm.rank(), out};
    Recv recv{1 - comm.rank(), in, 0};
    Pending pending = comm.start({&send, 1}, {&recv, 1});
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    pending.wait();
    EXPECT_TRUE(in == message(1 - comm.rank(), 0, 0, out.size()));
  });
}

TEST(Tcp, threads_wait_in_parts_at_the_same_time) {
  run_world("tcp", 3, [&](Communicator& comm) {
    const auto one = comm.split(0, 0);
    const auto two = comm.split(0, -comm.rank());
    std::jthread other([&] { conformance::survives_a_storm(*one); });
    conformance::survives_a_storm(*two);
  });
}

TEST(Tcp, dead_world_stays_dead_for_many_operations) {
  run_world("tcp", 3, [&](Communicator& comm) {
    comm.kill();
    for (int i = 0; i < 10; ++i) EXPECT_THROW(barrier(comm), CommError);
    EXPECT_THROW(comm.split(0, 0), CommError);
  });
}

}  // namespace
}  // namespace oktopk::tcp_test
