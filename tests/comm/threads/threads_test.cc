// SPDX-License-Identifier: Apache-2.0
// How a world of threads dies: promptly, with a reason, without a hang or a late write.
#include "oktopk/comm/transports.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "tests/support/communicator_conformance.h"
#include "tests/support/message.h"
#include "tests/support/world.h"

namespace oktopk::threads_test {
namespace {

using namespace std::chrono_literals;
using conformance::receive_from;

// Far longer than a test may take: a wait that ends by its timeout is a failure here.
constexpr Communicator::Duration kForever = 10min;

TEST(ThreadWorld, run_threads_rethrows_the_cause_not_a_consequence) {
  for (int culprit = 0; culprit < 4; ++culprit) {
    const auto body = [&](Communicator& comm) {
      if (comm.rank() == culprit) throw std::out_of_range("the cause");
      receive_from(comm, culprit);
    };
    EXPECT_EQ(message_of<std::out_of_range>([&] { run_threads(4, body, kForever); }), "the cause");
  }
}

TEST(ThreadWorld, wait_in_a_dead_world_tells_the_reason) {
  const auto body = [&](Communicator& comm) {
    if (comm.rank() == 1) throw std::logic_error("disk on fire");
    expect_error<CommError>("rank 1 failed: disk on fire", [&] { receive_from(comm, (comm.rank() + 2) % 3); });
    EXPECT_THROW(comm.start({}, {}), CommError);
  };
  EXPECT_THROW(run_threads(3, body, kForever), std::logic_error);
}

TEST(ThreadWorld, rank_that_fails_ends_splits_and_waits_in_parts) {
  const auto body = [](Communicator& comm) {
    const auto part = comm.split(comm.rank() / 2, 0);
    const auto nested = part->split(0, 0);
    if (comm.rank() == 0) throw std::logic_error("gone");
    EXPECT_THROW(receive_from(*nested, 1 - nested->rank()), CommError);
    EXPECT_THROW(receive_from(*part, 1 - part->rank()), CommError);
    EXPECT_THROW(comm.split(0, 0), CommError);
  };
  EXPECT_THROW(run_threads(4, body, kForever), std::logic_error);
}

TEST(ThreadWorld, part_outlives_the_world_it_came_from) {
  auto comms = make_thread_world(2, kTestTimeout);
  std::unique_ptr<Communicator> parts[2];
  {
    std::jthread other([&] { parts[1] = comms[1]->split(0, 0); });
    parts[0] = comms[0]->split(0, 0);
  }
  comms.clear();
  std::jthread other([&] { barrier(*parts[1]); });
  barrier(*parts[0]);
}

TEST(ThreadWorld, wait_for_a_rank_that_left_fails_promptly) {
  // Both orders: the wait first, and the leaving first.
  for (const auto leaving : {0ms, 50ms}) {
    const auto waiting = 50ms - leaving;
    run_threads(
        2,
        [&](Communicator& comm) {
          if (comm.rank() == 1) return std::this_thread::sleep_for(leaving);
          std::this_thread::sleep_for(waiting);
          expect_error<CommError>("left", [&] { receive_from(comm, 1); });
        },
        kForever);
  }
}

TEST(ThreadWorld, leaving_alone_does_not_disturb_the_others) {
  auto comms = make_thread_world(3, kTestTimeout);
  comms[1].reset();
  std::byte place[4];
  const Send send{2, place};
  std::jthread other([&] {
    std::byte there[4];
    Recv recv{0, there, 0};
    comms[2]->exchange({}, {&recv, 1});
    EXPECT_EQ(recv.size, 4u);
  });
  comms[0]->exchange({&send, 1}, {});
}

TEST(ThreadWorld, timeout_names_the_silent_peers) {
  std::atomic<bool> is_sent = false;
  std::atomic<bool> is_over = false;
  const auto sleep_until = [](const std::atomic<bool>& flag) {
    while (!flag) std::this_thread::sleep_for(1ms);
  };
  run_threads(
      4,
      [&](Communicator& comm) {
        if (comm.rank() == 0) {
          std::byte place[3][8];
          Recv recvs[] = {{1, place[0], 0}, {2, place[1], 0}, {3, place[2], 0}};
          Pending pending = comm.start({}, recvs);
          sleep_until(is_sent);
          expect_error<CommError>("from rank 1, 3", [&] { pending.wait(); });
          is_over = true;
        } else if (comm.rank() == 2) {
          const Send send{0, {}};
          Pending pending = comm.start({&send, 1}, {});
          is_sent = true;
          message_of<CommError>([&] { pending.wait(); });  // is complete, but the world may be dead by now
        }
        sleep_until(is_over);
      },
      50ms);
}

// Rank 0 waits for rank 1, which waits for rank 2, which does nothing. Rank 0 is the first to lose its patience.
TEST(ThreadWorld, timeout_names_the_rank_that_all_wait_for_in_the_end) {
  auto comms = make_thread_world(4, 1s);
  const auto wait_for = [&](std::size_t rank, int peer) {
    expect_error<CommError>("from rank 2", [&] { receive_from(*comms[rank], peer); });
  };
  const std::jthread first([&] { wait_for(0, 1); });
  std::this_thread::sleep_for(100ms);
  wait_for(1, 2);
}

TEST(ThreadWorld, timeout_in_a_circle_names_the_next_rank) {
  auto comms = make_thread_world(3, 200ms);
  run_ranks(3, [&](int rank) {
    Communicator& comm = *comms[static_cast<std::size_t>(rank)];
    expect_error<CommError>("s from rank ", [&] { receive_from(comm, neighbour(comm, 1)); });
  });
}

TEST(ThreadWorld, many_more_threads_than_cores_make_progress) {
  run_threads(48, [](Communicator& comm) {
    Workspace work;
    for (int i = 0; i < 3; ++i) {
      const auto sum = allreduce_small(comm, static_cast<std::int64_t>(comm.rank()), Reduction::sum, work);
      EXPECT_EQ(sum, 48 * 47 / 2);
    }
  });
}

TEST(ThreadWorld, abandoned_exchanges_under_fire_write_nothing_late) {
  // One rank frees its buffers while the others send into them: for the sanitizers.
  for (int round = 0; round < 30; ++round) {
    const auto body = [&](Communicator& comm) {
      Workspace work;
      std::vector<std::byte> out(5000), in(4 * 5000);
      for (int i = 0;; ++i) {
        if (comm.rank() == round % 4 && i == round / 4) {
          auto place = std::make_unique<std::byte[]>(5000);
          Recv recv{(comm.rank() + 1) % 4, {place.get(), 5000}, 0};
          const Pending pending = comm.start({}, {&recv, 1});
          throw std::logic_error("freed");
        }
        allgather(comm, out, in, work);
      }
    };
    EXPECT_THROW(run_threads(4, body, kForever), std::logic_error);
  }
}

TEST(ThreadWorld, bad_size_or_timeout_is_a_usage_error) {
  EXPECT_THROW(make_thread_world(0), UsageError);
  EXPECT_THROW(make_thread_world(-3), UsageError);
  EXPECT_THROW(make_thread_world(2, 0s), UsageError);
  EXPECT_NO_THROW(make_thread_world(2, Communicator::Duration::max()));
}

}  // namespace
}  // namespace oktopk::threads_test
