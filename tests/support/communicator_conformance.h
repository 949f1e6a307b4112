// SPDX-License-Identifier: Apache-2.0
// The contract of every transport, as checks that all ranks of a communicator call together. The table
// at the end names them; a new transport runs the table. Checks marked `kills` leave the
// communicator dead and need one with a short timeout.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "oktopk/base/bytes.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/communicator.h"
#include "tests/support/message.h"

namespace oktopk::conformance {

using Message = std::vector<std::byte>;

// Bytes that tell who sent what to whom.
inline Message message(int from, int to, int number, std::size_t size) {
  Message bytes(size);
  auto state = static_cast<std::uint32_t>(from * 7919 + to * 104729 + number * 1299709 + 1);
  for (std::byte& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

inline Message arrived(const Recv& recv) {
  const auto bytes = recv.buffer.first(recv.size);
  return Message(bytes.begin(), bytes.end());
}

// Waits for a message of up to 16 bytes.
inline void receive_from(Communicator& comm, int peer) {
  std::byte place[16];
  Recv recv{peer, place, 0};
  comm.exchange({}, {&recv, 1});
}

inline void knows_its_place(Communicator& comm) {
  EXPECT_GE(comm.rank(), 0);
  EXPECT_LT(comm.rank(), comm.size());
  EXPECT_FALSE(comm.transport().empty());
  EXPECT_GT(comm.timeout().count(), 0);
}

inline void keeps_order_between_exchanges(Communicator& comm) {
  const int next = neighbour(comm, 1);
  const int previous = neighbour(comm, -1);
  for (int i = 0; i < 30; ++i) {
    const auto size = static_cast<std::size_t>((i * 37) % 101);
    const Message out = message(comm.rank(), next, i, size);
    Message in(128);
    const Send send{next, out};
    Recv recv{previous, in, 0};
    comm.exchange({&send, 1}, {&recv, 1});
    EXPECT_EQ(arrived(recv), message(previous, comm.rank(), i, size));
  }
}

inline void keeps_order_within_one_exchange(Communicator& comm) {
  const int next = neighbour(comm, 1);
  const int previous = neighbour(comm, -1);
  std::vector<Message> out, in(10, Message(4096));
  std::vector<Send> sends;
  std::vector<Recv> recvs;
  // Sizes from tiny to large: a transport that treats them differently must not let one overtake.
  const auto size_of = [](int i) { return static_cast<std::size_t>(i % 2 == 0 ? 4000 - i : i); };
  for (int i = 0; i < 10; ++i) out.push_back(message(comm.rank(), next, i, size_of(i)));
  for (const Message& bytes : out) sends.push_back({next, bytes});
  for (Message& bytes : in) recvs.push_back({previous, bytes, 0});
  comm.exchange(sends, recvs);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(arrived(recvs[static_cast<std::size_t>(i)]), message(previous, comm.rank(), i, size_of(i)));
  }
}

inline void reports_the_size_below_the_capacity(Communicator& comm) {
  const int next = neighbour(comm, 1);
  const int previous = neighbour(comm, -1);
  for (const std::size_t size : {0, 1, 7, 63, 64, 65, 127, 128, 129, 1000}) {
    for (const std::size_t spare : {0, 1, 64, 500}) {
      const Message out = message(comm.rank(), next, 5, size);
      Message in(size + spare, std::byte{0xee});
      const Send send{next, out};
      Recv recv{previous, in, 12345};
      comm.exchange({&send, 1}, {&recv, 1});
      ASSERT_EQ(recv.size, size);
      EXPECT_EQ(arrived(recv), message(previous, comm.rank(), 5, size));
      for (std::size_t i = size; i < in.size(); ++i) ASSERT_EQ(in[i], std::byte{0xee});
    }
  }
}

inline void moves_large_messages(Communicator& comm) {
  const std::size_t size = (std::size_t{1} << 20) + 3;
  const int next = neighbour(comm, 1);
  const int previous = neighbour(comm, -1);
  const Message out = message(comm.rank(), next, 0, size);
  Message in(size + 100);
  const Send send{next, out};
  Recv recv{previous, in, 0};
  comm.exchange({&send, 1}, {&recv, 1});
  EXPECT_TRUE(arrived(recv) == message(previous, comm.rank(), 0, size));
}

inline void accepts_empty_exchanges_and_messages(Communicator& comm) {
  comm.exchange({}, {});
  const Send send{neighbour(comm, 1), {}};
  Message in(3);
  Recv to_something{neighbour(comm, -1), in, 9};
  Recv to_nothing{neighbour(comm, -1), {}, 9};
  comm.exchange({&send, 1}, {&to_something, 1});
  comm.exchange({&send, 1}, {&to_nothing, 1});
  EXPECT_EQ(to_something.size, 0u);
  EXPECT_EQ(to_nothing.size, 0u);
}

inline void sends_to_itself(Communicator& comm) {
  for (const std::size_t size : {0, 10, 100000}) {
    const Message out = message(comm.rank(), comm.rank(), 3, size);
    Message in(size + 1);
    const Send send{comm.rank(), out};
    Recv recv{comm.rank(), in, 0};
    comm.exchange({&send, 1}, {&recv, 1});
    EXPECT_EQ(arrived(recv), out);
  }
}

inline void waits_in_any_order(Communicator& comm) {
  constexpr int kInFlight = 6;
  const int next = neighbour(comm, 1);
  const int previous = neighbour(comm, -1);
  std::vector<Message> out, in(kInFlight, Message(70000));
  std::vector<Send> sends(kInFlight);
  std::vector<Recv> recvs(kInFlight);
  std::vector<Pending> pendings;
  for (int i = 0; i < kInFlight; ++i) {
    out.push_back(message(comm.rank(), next, i, static_cast<std::size_t>(i) * 13001));
  }
  for (std::size_t i = 0; i < kInFlight; ++i) {
    sends[i] = {next, out[i]};
    recvs[i] = {previous, in[i], 0};
    pendings.push_back(comm.start({&sends[i], 1}, {&recvs[i], 1}));
  }
  for (const std::size_t i : {3, 5, 0, 4, 1, 2}) {
    pendings[i].wait();
    const int number = static_cast<int>(i);
    EXPECT_TRUE(arrived(recvs[i]) == message(previous, comm.rank(), number, i * 13001));
  }
}

inline void survives_a_storm(Communicator& comm) {
  const int P = comm.size();
  std::mt19937 random(42);  // the same on all ranks
  for (int round = 0; round < 20; ++round) {
    std::vector<std::size_t> sizes(static_cast<std::size_t>(P * P));
    for (std::size_t& size : sizes) size = random() % 3000;
    const auto size_of = [&](int from, int to) { return sizes[static_cast<std::size_t>(from * P + to)]; };
    std::vector<Message> out, in;
    for (int peer = 0; peer < P; ++peer) {
      out.push_back(message(comm.rank(), peer, round, size_of(comm.rank(), peer)));
      in.emplace_back(3000);
    }
    std::vector<Send> sends;
    std::vector<Recv> recvs;
    for (int peer = 0; peer < P; ++peer) {
      sends.push_back({neighbour(comm, peer), out[static_cast<std::size_t>(neighbour(comm, peer))]});
      recvs.push_back({peer, in[static_cast<std::size_t>(peer)], 0});
    }
    comm.exchange(sends, recvs);
    for (int peer = 0; peer < P; ++peer) {
      ASSERT_EQ(arrived(recvs[static_cast<std::size_t>(peer)]),
                message(peer, comm.rank(), round, size_of(peer, comm.rank())));
    }
  }
}

inline void splits_by_color_and_key(Communicator& comm) {
  // Three colors, order reversed by the key; equal keys keep the order of the ranks.
  const int color = comm.rank() % 3 * 5;
  const auto part = comm.split(color, -comm.rank());
  const int members = (comm.size() - comm.rank() % 3 + 2) / 3;
  EXPECT_EQ(part->size(), members);
  EXPECT_EQ(part->rank(), members - 1 - comm.rank() / 3);
  EXPECT_EQ(part->timeout(), comm.timeout());
  keeps_order_between_exchanges(*part);
  const auto same = comm.split(0, 7);
  EXPECT_EQ(same->rank(), comm.rank());
  EXPECT_EQ(same->size(), comm.size());
  const auto alone = part->split(part->rank(), 0);
  EXPECT_EQ(alone->size(), 1);
  sends_to_itself(*alone);
  // Parts and whole do not disturb each other.
  survives_a_storm(*same);
  keeps_order_between_exchanges(comm);
}

inline void finds_who_shares_its_host(Communicator& comm) {
  EXPECT_EQ(comm.host(), 0);  // all ranks of these tests run on one machine
  const auto part = comm.split(comm.rank() % 2, -comm.rank());
  EXPECT_EQ(part->host(), 0);  // in the part's own numbers
}

inline void rejects_bad_peers_and_stays_usable(Communicator& comm) {
  for (const int peer : {-1, comm.size(), comm.size() + 100}) {
    const Send send{peer, {}};
    Recv recv{peer, {}, 0};
    EXPECT_THROW(comm.start({&send, 1}, {}), UsageError);
    EXPECT_THROW(comm.start({}, {&recv, 1}), UsageError);
  }
  EXPECT_THROW(comm.split(-1, 0), UsageError);
  Pending pending = comm.start({}, {});
  pending.wait();
  EXPECT_THROW(pending.wait(), UsageError);
  keeps_order_between_exchanges(comm);
}

// From here on: each leaves the communicator dead.

inline void expect_dead(Communicator& comm) {
  EXPECT_THROW(comm.exchange({}, {}), CommError);
  const Send send{comm.rank(), {}};
  EXPECT_THROW(comm.exchange({&send, 1}, {}), CommError);
}

inline void times_out_when_nobody_sends(Communicator& comm) {
  const auto begin = std::chrono::steady_clock::now();
  expect_error<CommError>("no answer within ", [&] { receive_from(comm, neighbour(comm, 1)); });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, comm.timeout() + std::chrono::seconds(20));
  expect_dead(comm);
}

// Rank 0 waits for two messages; one of them comes. A machine that is busy may take longer than the timeout for it.
inline void timeout_names_the_silent_rank_only(Communicator& comm) {
  const int last = comm.size() - 1;
  if (last < 2) return;
  const Message out(5);
  const Send send{0, out};
  if (comm.rank() == 1) message_of<CommError>([&] { comm.exchange({&send, 1}, {}); });
  if (comm.rank() == last) std::this_thread::sleep_for(4 * comm.timeout());
  if (comm.rank() != 0) return;
  Message in[2] = {Message(10), Message(10)};
  Recv recvs[] = {{1, in[0], 0}, {last, in[1], 0}};
  const std::string text = message_of<CommError>([&] { comm.exchange({}, recvs); });
  if (recvs[0].size != out.size()) return;
  const std::string silent = "rank " + std::to_string(last);  // where ranks are simulated, it has left meanwhile
  EXPECT_TRUE(text.find("from " + silent) != text.npos || text.find(": " + silent + " left") != text.npos) << text;
}

inline void fails_on_an_oversized_message(Communicator& comm) {
  const Message out(200);
  Message in(100);
  const Send send{neighbour(comm, 1), out};
  Recv recv{neighbour(comm, -1), in, 0};
  const std::string text = message_of<CommError>([&] { comm.exchange({&send, 1}, {&recv, 1}); });
  const bool tells_sizes = text.find("200 bytes") != text.npos && text.find("capacity 100") != text.npos;
  EXPECT_TRUE(tells_sizes || text.find("no answer within") != text.npos) << text;
  expect_dead(comm);
}

// The last rank is there, but silent.
inline void split_without_a_rank_fails_in_time(Communicator& comm) {
  if (comm.size() == 1) return;
  if (comm.rank() == comm.size() - 1) return std::this_thread::sleep_for(2 * comm.timeout());
  EXPECT_THROW(comm.split(0, 0), CommError);
  expect_dead(comm);
}

// The last rank ends its end of a part; a machine that is busy may take longer than the timeout for the split.
inline void part_that_was_left_is_noticed(Communicator& comm) {
  if (comm.size() == 1) return;
  const bool leaves = comm.rank() == comm.size() - 1;
  const auto wait_in_part = [&] {
    const auto part = comm.split(0, 0);
    if (!leaves) receive_from(*part, comm.size() - 1);
  };
  const std::string text = message_of<CommError>(wait_in_part);
  EXPECT_TRUE(leaves || text != "accepted");
}

inline void dies_when_an_exchange_is_abandoned(Communicator& comm) {
  auto in = std::make_unique<Message>(1000);
  Recv recv{neighbour(comm, 1), *in, 0};
  try {
    const Pending pending = comm.start({}, {&recv, 1});
  } catch (const CommError&) {
    // A peer was faster, where it can tell us.
  }
  in.reset();  // nothing may write there any more: for the address sanitizer
  expect_dead(comm);
}

inline void dies_when_killed(Communicator& comm) {
  comm.kill();
  comm.kill();
  expect_dead(comm);
}

struct Check {
  const char* name;
  void (*run)(Communicator&);
  bool kills;
};

inline constexpr Check kChecks[] = {
    {"knows_its_place", knows_its_place, false},
    {"keeps_order_between_exchanges", keeps_order_between_exchanges, false},
    {"keeps_order_within_one_exchange", keeps_order_within_one_exchange, false},
    {"reports_the_size_below_the_capacity", reports_the_size_below_the_capacity, false},
    {"moves_large_messages", moves_large_messages, false},
    {"accepts_empty_exchanges_and_messages", accepts_empty_exchanges_and_messages, false},
    {"sends_to_itself", sends_to_itself, false},
    {"waits_in_any_order", waits_in_any_order, false},
    {"survives_a_storm", survives_a_storm, false},
    {"splits_by_color_and_key", splits_by_color_and_key, false},
    {"finds_who_shares_its_host", finds_who_shares_its_host, false},
    {"rejects_bad_peers_and_stays_usable", rejects_bad_peers_and_stays_usable, false},
    {"times_out_when_nobody_sends", times_out_when_nobody_sends, true},
    {"timeout_names_the_silent_rank_only", timeout_names_the_silent_rank_only, true},
    {"fails_on_an_oversized_message", fails_on_an_oversized_message, true},
    {"split_without_a_rank_fails_in_time", split_without_a_rank_fails_in_time, true},
    {"part_that_was_left_is_noticed", part_that_was_left_is_noticed, true},
    {"dies_when_an_exchange_is_abandoned", dies_when_an_exchange_is_abandoned, true},
    {"dies_when_killed", dies_when_killed, true},
};

inline constexpr Communicator::Duration kShortTimeout = std::chrono::milliseconds(50);

inline void PrintTo(const Check& check, std::ostream* out) { *out << check.name; }

}  // namespace oktopk::conformance
