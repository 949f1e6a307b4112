// SPDX-License-Identifier: Apache-2.0
// Messages in a trace, with peer and bytes; nothing else changes; traces of ranks come together.
#include "oktopk/comm/decorators.h"

#include <gtest/gtest.h>

#include "oktopk/comm/collectives.h"
#include "tests/support/communicator_conformance.h"
#include "tests/support/world.h"

namespace oktopk::tracing_test {
namespace {

using conformance::Message;

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t i = text.find(part); i != std::string::npos; i = text.find(part, i + 1)) ++found;
  return found;
}

TEST(TracingCommunicator, changes_nothing_else) {
  for (const int P : {1, 3, 4})
    run_world("threads", P, [](Communicator& comm) {
      Trace trace;
      TracingCommunicator traced(comm, &trace);
      conformance::survives_a_storm(traced);
      conformance::splits_by_color_and_key(traced);
    });
}

TEST(TracingCommunicator, records_peer_and_bytes_of_messages_to_others) {
  run_world("threads", 3, [](Communicator& comm) {
    Trace trace;
    TracingCommunicator traced(comm, &trace);
    const Message out(40 + static_cast<std::size_t>(comm.rank()));
    Message in(100), own(100);
    const int next = neighbour(comm, 1);
    const int previous = neighbour(comm, -1);
    const Send sends[] = {{next, out}, {comm.rank(), out}};
    Recv recvs[] = {{previous, in, 0}, {comm.rank(), own, 0}};
    traced.exchange(sends, recvs);
    const std::string json = trace.to_json();
    const auto said = [](const std::string& what, int peer, std::size_t bytes) {
      return "\"args\":{\"" + what + " " + std::to_string(peer) + "\":" + std::to_string(bytes) + "}}";
    };
    EXPECT_EQ(trace.size(), 2u);
    EXPECT_EQ(count(json, said("to", next, out.size())), 1u) << json;
    EXPECT_EQ(count(json, said("from", previous, 40 + static_cast<std::size_t>(previous))), 1u);
    EXPECT_EQ(count(json, "\"pid\":" + std::to_string(comm.rank()) + ",\"tid\":0,\"args\":{\"to"), 1u);
  });
}

TEST(TracingCommunicator, calls_peers_by_the_names_that_are_given) {
  run_world("threads", 2, [](Communicator& comm) {
    Trace trace;
    TracingCommunicator traced(comm, TraceRow(&trace, 7), {4, 9});
    barrier(traced);
    const std::string other = comm.rank() == 0 ? "9" : "4";
    EXPECT_EQ(count(trace.to_json(), "\"to " + other + "\":0"), 1u) << trace.to_json();
    EXPECT_EQ(count(trace.to_json(), "\"rank 7\""), 1u);
    EXPECT_THROW(TracingCommunicator(comm, &trace, {1, 2, 3}), UsageError);
  });
}

TEST(TracingCommunicator, a_wait_that_fails_is_recorded_as_such) {
  const auto failures = gather_world("threads", 2, [](Communicator& comm) {
    if (comm.rank() == 1) return std::size_t{0};  // gone at once
    Trace trace;
    TracingCommunicator traced(comm, &trace);
    Message in(8);
    Recv recv{1, in, 0};
    EXPECT_THROW(traced.exchange({}, {&recv, 1}), CommError);
    return count(trace.to_json(), "\"failed\":1");
  });
  EXPECT_EQ(failures[0], 1u);
}

TEST(GatherTrace, rank_0_has_the_events_of_all_ranks) {
  for (const int P : {1, 3, 5})
    run_world("threads", P, [P](Communicator& comm) {
      Trace trace;
      TracingCommunicator traced(comm, &trace);
      barrier(traced);
      const std::size_t mine = trace.size();
      gather_trace(comm, trace);
      if (comm.rank() != 0) {
        EXPECT_EQ(trace.size(), mine);
        return;
      }
      EXPECT_EQ(trace.size(), mine * static_cast<std::size_t>(P));
      const std::string json = trace.to_json();
      for (int r = 0; r < P; ++r) EXPECT_EQ(count(json, "\"rank " + std::to_string(r) + "\""), mine > 0 ? 1u : 0u);
    });
}

// Two events at the same time, one on each rank; what the file says of when they began.
std::size_t at_the_start(Communicator& comm, Trace::Clock::time_point time) {
  Trace trace;
  trace.record(comm.rank(), 0, "e", "c", time, time + std::chrono::seconds(1));
  gather_trace(comm, trace);
  return count(trace.to_json(), "\"ts\":0.000");
}

TEST(GatherTrace, ranks_of_one_host_keep_their_times) {
  const auto now = Trace::Clock::now();
  const auto starts = gather_world("threads", 2, [&](Communicator& comm) {
    EXPECT_EQ(comm.host(), 0);
    return at_the_start(comm, now);
  });
  EXPECT_EQ(starts[0], 2u);
}

// Ranks that each are a host of their own.
class FarCommunicator final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  std::unique_ptr<Communicator> split(int, int) override { return nullptr; }
  int host() override { return rank(); }
};

TEST(GatherTrace, ranks_of_other_hosts_arrive_as_well) {
  run_world("threads", 3, [](Communicator& comm) {
    FarCommunicator far(comm);
    Trace trace;
    const auto now = Trace::Clock::now();
    trace.record(comm.rank(), 0, "e", "c", now, now + std::chrono::seconds(1));
    gather_trace(far, trace);
    EXPECT_EQ(trace.size(), comm.rank() == 0 ? 3u : 1u);
    if (comm.rank() == 0) {
      EXPECT_EQ(count(trace.to_json(), "\"dur\":1000000.000"), 3u);
    }
  });
}

TEST(Communicator, counts_what_it_sent_to_others) {
  run_world("threads", 3, [](Communicator& comm) {
    Trace trace;
    TracingCommunicator traced(comm, &trace);
    const Message out(10);
    Message in(10);
    Message own(10);
    const Send sends[] = {{neighbour(comm, 1), out}, {comm.rank(), out}};
    Recv recvs[] = {{neighbour(comm, -1), in, 0}, {comm.rank(), own, 0}};
    for (Communicator* each : {&comm, static_cast<Communicator*>(&traced)}) {
      each->exchange(sends, recvs);
      EXPECT_EQ(each->sent_so_far().messages, 1u);
      EXPECT_EQ(each->sent_so_far().bytes, 10u);
    }
  });
}

}  // namespace
}  // namespace oktopk::tracing_test
