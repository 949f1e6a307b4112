// SPDX-License-Identifier: Apache-2.0
#include "oktopk/comm/decorators.h"

#include <gtest/gtest.h>

#include <bit>
#include <string>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/laws/faults.h"
#include "tests/support/communicator_conformance.h"
#include "tests/support/world.h"

namespace oktopk::decorators_test {
namespace {

using namespace std::chrono_literals;
using conformance::Message;

TEST(CountingCommunicator, counts_messages_and_bytes_of_others_only) {
  run_world("threads", 3, [](Communicator& comm) {
    CountingCommunicator counting(comm);
    const Message out(40 + static_cast<std::size_t>(comm.rank()));
    Message in(100), own(100);
    const Send sends[] = {{neighbour(comm, 1), out}, {comm.rank(), out}};
    Recv recvs[] = {{neighbour(comm, -1), in, 0}, {comm.rank(), own, 0}};
    Pending pending = counting.start(sends, recvs);
    EXPECT_EQ(counting.traffic().bytes_received, 0u);
    pending.wait();
    const auto received = 40 + static_cast<std::uint64_t>(neighbour(comm, -1));
    EXPECT_EQ(counting.traffic().messages_sent, 1u);
    EXPECT_EQ(counting.traffic().messages_received, 1u);
    EXPECT_EQ(counting.traffic().bytes_sent, out.size());
    EXPECT_EQ(counting.traffic().bytes_received, received);
    EXPECT_EQ(counting.traffic().duplex_bytes, std::max<std::uint64_t>(out.size(), received));
    counting.reset();
    EXPECT_EQ(counting.traffic().messages_sent, 0u);
  });
}

TEST(CountingCommunicator, an_abandoned_exchange_was_sent_and_is_not_received) {
  run_world("threads", 2, [](Communicator& comm) {
    if (comm.rank() == 1) return;
    CountingCommunicator counting(comm);
    const Message out(8);
    Message in(8);
    const Send send{1, out};
    Recv recv{1, in, 0};
    { const Pending abandoned = counting.start({&send, 1}, {&recv, 1}); }
    EXPECT_EQ(counting.traffic().messages_sent, 1u);
    EXPECT_EQ(counting.traffic().messages_received, 0u);
    EXPECT_EQ(counting.traffic().duplex_messages, 0u);
    EXPECT_THROW(barrier(counting), CommError);
  });
}

TEST(CountingCommunicator, parts_count_into_the_whole) {
  run_world("threads", 4, [](Communicator& comm) {
    CountingCommunicator counting(comm);
    const auto part = counting.split(comm.rank() % 2, 0);
    barrier(*part);
    EXPECT_EQ(counting.traffic().messages_sent, 1u);
    barrier(counting);
    EXPECT_EQ(counting.traffic().messages_sent, 3u);
  });
}

// Rank 0 sends five messages of 32 zero bytes to rank 1 and has the fault; what rank 1 receives.
struct Seen {
  std::vector<Message> messages;
  bool failed = false;
};

Seen receive_with(const Fault& fault, Communicator::Duration timeout = kTestTimeout) {
  Seen seen;
  run_world(
      "threads", 2,
      [&](Communicator& comm) {
        FaultyCommunicator faulty(comm, comm.rank() == 0 ? fault : Fault{});
        try {
          for (int i = 0; i < 5; ++i) {
            Message bytes(32);
            if (comm.rank() == 0) {
              bytes[0] = static_cast<std::byte>(i << 4);
              const Send send{1, bytes};
              faulty.exchange({&send, 1}, {});
            } else {
              Recv recv{0, bytes, 0};
              faulty.exchange({}, {&recv, 1});
              seen.messages.push_back(conformance::arrived(recv));
            }
          }
        } catch (const CommError&) {
          if (comm.rank() == 1) seen.failed = true;
        }
        if (comm.rank() == 0) {
          EXPECT_EQ(faulty.has_struck(), fault.kind != FaultKind::none);
        }
      },
      timeout);
  return seen;
}

int bits_set(const Message& bytes) {
  int bits = 0;
  for (const std::byte byte : bytes) bits += std::popcount(std::to_integer<unsigned>(byte));
  return bits;
}

TEST(FaultyCommunicator, kinds_do_what_their_names_say) {
  struct Row {
    Fault fault;
    Communicator::Duration timeout;
    bool fails;
    std::vector<int> arrive;  // the messages that rank 1 gets
    int flipped = -1;         // a message with one bit flipped
    int shortened = -1;       // a message that lost its end
    bool may_miss = false;    // the last of `arrive` may be lost with the world
  };
  const Row rows[] = {
      {{FaultKind::none, 2, 1}, kTestTimeout, false, {0, 1, 2, 3, 4}},
      {{FaultKind::die, 2, 1}, 10min, true, {0, 1}, -1, -1, true},
      {{FaultKind::drop, 2, 1}, 1s, true, {0, 1, 3, 4}},
      {{FaultKind::corrupt, 3, 0}, kTestTimeout, false, {0, 1, 2, 3, 4}, 3},
      {{FaultKind::corrupt, 3, 4}, kTestTimeout, false, {0, 1, 2, 3, 4}, 3},
      {{FaultKind::truncate, 1, 4}, kTestTimeout, false, {0, 1, 2, 3, 4}, -1, 1},
      {{FaultKind::stall, 1, 4}, 500ms, true, {0}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(to_string(row.fault.kind));
    const Seen seen = receive_with(row.fault, row.timeout);
    EXPECT_EQ(seen.failed, row.fails);
    ASSERT_LE(seen.messages.size(), row.arrive.size());
    if (!row.may_miss) {
      ASSERT_EQ(seen.messages.size(), row.arrive.size());
    }
    for (std::size_t i = 0; i < seen.messages.size(); ++i) {
      Message bytes = seen.messages[i];
      EXPECT_EQ(bytes.size() < 32, row.arrive[i] == row.shortened);
      if (!bytes.empty()) bytes[0] ^= static_cast<std::byte>(row.arrive[i] << 4);
      EXPECT_EQ(bits_set(bytes), row.arrive[i] == row.flipped ? 1 : 0);
    }
  }
}

TEST(FaultyCommunicator, every_kind_ends_a_barrier_loop_without_a_hang) {
  for (const FaultKind kind : kFaultKinds) {
    std::vector<int> finished(4, 0);
    const auto body = [&](Communicator& comm) {
      FaultyCommunicator faulty(comm, comm.rank() == 2 ? Fault{kind, 7, 0} : Fault{});
      const auto part = faulty.split(0, 0);
      for (int i = 0; i < 10; ++i) barrier(*part);
      finished[static_cast<std::size_t>(comm.rank())] = 1;
    };
    // Barriers carry no bytes: there is nothing to corrupt or truncate.
    const bool is_harmless = kind == FaultKind::none || kind == FaultKind::corrupt || kind == FaultKind::truncate;
    if (is_harmless) {
      EXPECT_NO_THROW(run_world("threads", 4, body)) << to_string(kind);
    } else {
      EXPECT_THROW(run_world("threads", 4, body, 50ms), CommError) << to_string(kind);
    }
    EXPECT_EQ(finished == std::vector<int>(4, 1), is_harmless) << to_string(kind);
  }
}

}  // namespace
}  // namespace oktopk::decorators_test
