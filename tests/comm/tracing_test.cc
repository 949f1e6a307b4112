// SPDX-License-Identifier: Apache-2.0
// Messages in a trace, with peer and bytes; nothing else changes; traces of ranks come together.
#include "oktopk/comm/decorators.h"

#include <gtest/gtest.h>

#include "oktopk/comm/collectives.h"
#include "tests/support/communicator_conformance.h"
#include "tests/support/message.h"
#include "tests/support/world.h"

namespace oktopk::tracing_test {
namespace {

using conformance::Message;

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
    EXPECT_EQ(traced.sent_so_far().messages, 1u);
    EXPECT_EQ(traced.sent_so_far().bytes, out.size());
    const std::string json = trace.to_json();
    const auto said = [](const std::string& what, int peer, std::size_t bytes) {
      return "\"args\":{\"" + what + " " + std::to_string(peer) + "\":" + std::to_string(bytes) + "}}";
    };
    EXPECT_EQ(trace.size(), 2u);
    EXPECT_EQ(count_of(json, said("to", next, out.size())), 1u) << json;
    EXPECT_EQ(count_of(json, said("from", previous, 40 + static_cast<std::size_t>(previous))), 1u);
    EXPECT_EQ(count_of(json, "\"pid\":" + std::to_string(comm.rank()) + ",\"tid\":0,\"args\":{\"to"), 1u);
  });
}

TEST(TracingCommunicator, calls_peers_by_the_names_that_are_given) {
  run_world("threads", 2, [](Communicator& comm) {
    Trace trace;
    TracingCommunicator traced(comm, TraceRow(&trace, 7), {4, 9});
    barrier(traced);
    const std::string other = comm.rank() == 0 ? "9" : "4";
    EXPECT_EQ(count_of(trace.to_json(), "\"to " + other + "\":0"), 1u) << trace.to_json();
    EXPECT_EQ(count_of(trace.to_json(), "\"rank 7\""), 1u);
    EXPECT_THROW(TracingCommunicator(comm, &trace, {1, 2, 3}), UsageError);
  });
}

TEST(TracingCommunicator, a_wait_that_fails_is_recorded_as_such) {
  run_world("threads", 2, [](Communicator& comm) {
    if (comm.rank() == 1) return;  // gone at once
    Trace trace;
    TracingCommunicator traced(comm, &trace);
    EXPECT_THROW(conformance::receive_from(traced, 1), CommError);
    EXPECT_EQ(count_of(trace.to_json(), "\"failed\":1"), 1u);
  });
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
      for (int r = 0; r < P; ++r) EXPECT_EQ(count_of(json, "\"rank " + std::to_string(r) + "\""), mine > 0 ? 1u : 0u);
    });
}

// Ranks that each are a host of their own.
class FarCommunicator final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  std::unique_ptr<Communicator> split(int, int) override { return nullptr; }
  int host() override { return rank(); }
};

// One event on each rank, all at the same time.
TEST(GatherTrace, ranks_of_one_host_keep_their_times_and_others_arrive_as_well) {
  const auto now = Trace::Clock::now();
  run_world("threads", 3, [&](Communicator& comm) {
    FarCommunicator far(comm);
    for (Communicator* each : {&comm, static_cast<Communicator*>(&far)}) {
      Trace trace;
      trace.record(comm.rank(), 0, "e", "c", now, now + std::chrono::seconds(1));
      gather_trace(*each, trace);
      if (comm.rank() != 0) continue;
      EXPECT_EQ(trace.size(), 3u);
      EXPECT_EQ(count_of(trace.to_json(), "\"dur\":1000000.000"), 3u);
      if (each == &comm) {
        EXPECT_EQ(count_of(trace.to_json(), "\"ts\":0.000"), 3u);
      }
    }
  });
}

}  // namespace
}  // namespace oktopk::tracing_test
