// SPDX-License-Identifier: Apache-2.0
// The end of a communicator while another thread is inside of it, by an interruption, and in a child of fork().
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/elastic_world.h"
#include "oktopk/comm/transports.h"
#include "tests/support/child.h"
#include "tests/support/communicator_conformance.h"
#include "tests/support/message.h"
#include "tests/support/world.h"

namespace oktopk::ends_test {
namespace {

using conformance::Message;
using conformance::receive_from;

class Ends : public testing::TestWithParam<std::string_view> {};

// The wait begins before, during or after the end; there is no sleep that makes one of them sure.
TEST_P(Ends, destroying_a_communicator_ends_the_wait_of_another_thread) {
  for (int pause = 0; pause < 20; ++pause)
    run_world(GetParam(), 2, [&](Communicator& comm) {
      auto part = comm.split(0, comm.rank());
      if (comm.rank() == 0) {
        std::atomic<bool> is_inside = false;
        std::string said;
        std::thread other([&] {
          Message in(10);
          Recv recv{1, in, 0};
          Pending pending = part->start({}, {&recv, 1});
          is_inside = true;
          said = message_of<std::exception>([&] { pending.wait(); });
        });
        while (!is_inside) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(1 + pause));
        part.reset();
        other.join();
        expect_contains(said, "rank 0 abandoned an exchange");
      } else {
        EXPECT_THROW(receive_from(*part, 0), CommError);
      }
    });
}

TEST_P(Ends, killing_a_communicator_ends_the_wait_of_another_thread) {
  run_world(GetParam(), 2, [&](Communicator& comm) {
    if (comm.rank() == 1) {
      EXPECT_THROW(receive_from(comm, 0), CommError);
      return;
    }
    std::thread other([&] { EXPECT_THROW(receive_from(comm, 1), CommError); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    comm.kill();
    other.join();
  });
}

TEST_P(Ends, child_of_fork_is_refused_and_disturbs_nobody) {
  run_world(GetParam(), 3, [&](Communicator& comm) {
    auto part = comm.split(0, comm.rank());
    barrier(comm);
    if (comm.rank() == 1) {
      const bool holds = holds_in_child([&] {
        const std::string said = message_of<std::exception>([&] { barrier(*part); });
        comm.kill();
        part.reset();
        return said.find("this process was forked from rank 1") != std::string::npos;
      });
      EXPECT_TRUE(holds);
    }
    barrier(*part);
    barrier(comm);
  });
}

// Another thread of the parent is inside of the communicator, and may have its lock.
TEST_P(Ends, child_of_fork_takes_no_lock) {
  run_world(GetParam(), 2, [&](Communicator& comm) {
    auto part = comm.split(0, comm.rank());
    barrier(comm);
    if (comm.rank() == 0) {
      std::thread other([&] { conformance::survives_a_storm(*part); });
      for (int i = 0; i < 5; ++i)
        EXPECT_TRUE(holds_in_child([&] {
          comm.close_in_child();
          part.reset();
          return true;
        }));
      other.join();
    } else {
      conformance::survives_a_storm(*part);
    }
    barrier(comm);
  });
}

INSTANTIATE_TEST_SUITE_P(All, Ends, testing::ValuesIn(kTransports),
                         [](const auto& test) { return std::string(test.param); });

TEST(TcpEnds, child_of_fork_closes_its_descriptors) {
  if (!tcp_available()) GTEST_SKIP() << "a build without OpenSSL";
  run_world("tcp", 3, [&](Communicator& comm) {
    barrier(comm);
    if (comm.rank() == 0) {
      EXPECT_TRUE(holds_in_child([&] {
        const std::ptrdiff_t before = count_connections();
        comm.close_in_child();
        return count_connections() == before - 2 - 4;  // two connections, two pipes
      }));
    }
    barrier(comm);
  });
}

struct Interruption : std::runtime_error {
  using std::runtime_error::runtime_error;
};

TEST(TcpEnds, interrupted_wait_throws_what_the_program_throws) {
  if (!tcp_available()) GTEST_SKIP() << "a build without OpenSSL";
  const KeyValueStore store = make_memory_store();
  std::atomic<int> looks = 0;
  run_ranks(2, [&](int rank) {
    TcpOptions options = tcp_options(rank, 2, store, kTestTimeout);
    if (rank == 0)
      options.look = [&] {
        if (++looks == 2) throw Interruption("the user has had enough");
      };
    const auto comm = make_tcp_world(options);
    if (rank == 0) {
      EXPECT_THROW(receive_from(*comm, 1), Interruption);
      EXPECT_THROW(receive_from(*comm, 1), CommError);
    } else {
      expect_error<CommError>("rank 0 was interrupted", [&] { receive_from(*comm, 0); });
    }
  });
}

TEST(TcpEnds, interrupted_wait_for_the_other_ranks_throws_what_the_program_throws) {
  if (!tcp_available()) GTEST_SKIP() << "a build without OpenSSL";
  for (const int rank : {0, 1}) {  // waits for one that comes to it, and for one to which it goes
    TcpOptions options = tcp_options(rank, 2, make_memory_store(), kTestTimeout);
    options.look = [] { throw Interruption("the user has had enough"); };
    EXPECT_THROW(make_tcp_world(options), Interruption);
  }
}

// Another thread of the parent has the lock of the link now and then.
TEST(TcpEnds, elastic_world_takes_no_lock_in_a_child) {
  if (!tcp_available()) GTEST_SKIP() << "a build without OpenSSL";
  const RendezvousServer server({.secret = kTestSecret});
  TcpElasticOptions options;
  options.tcp.rendezvous = server.address();
  options.tcp.secret = kTestSecret;
  auto world = make_tcp_elastic_world(options);
  std::atomic<bool> is_over = false;
  std::thread other([&] {
    while (!is_over) world->has_joiners();
  });
  for (int i = 0; i < 10; ++i)
    EXPECT_TRUE(holds_in_child([&] {
      ::alarm(5);
      world->kill();
      world->leave();
      world->take_notes();
      const bool holds = !world->has_joiners();
      world.reset();
      return holds;
    }));
  is_over = true;
  other.join();
  barrier(world->comm());
}

TEST(TcpEnds, server_of_a_parent_serves_on_when_its_child_ends) {
  if (!tcp_available()) GTEST_SKIP() << "a build without OpenSSL";
  auto server = std::make_unique<RendezvousServer>(RendezvousServerOptions{.secret = kTestSecret, .job = "job"});
  const KeyValueStore store = make_server_store({.address = server->address(), .secret = kTestSecret, .job = "job"});
  store.set("key", "before");
  EXPECT_TRUE(holds_in_child([&] {
    server.reset();
    return true;
  }));
  EXPECT_EQ(store.get("key", kTestTimeout), "before");
}

}  // namespace
}  // namespace oktopk::ends_test
