// SPDX-License-Identifier: Apache-2.0
// The flight recorder sees every operation of a communicator, its parts and its decorators.
#include "oktopk/comm/flight.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/base/version.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/decorators.h"
#include "oktopk/comm/transports.h"
#include "tests/support/allocations.h"
#include "tests/support/message.h"
#include "tests/support/world.h"

namespace oktopk::flight_test {
namespace {

TEST(Flight, numbers_messages_between_two_ranks_in_each_direction) {
  run_world("threads", 3, [](Communicator& comm) {
    const std::vector<std::byte> out(static_cast<std::size_t>(comm.rank()) + 1);
    std::vector<std::byte> in(10);
    for (int round = 0; round < 2; ++round) {
      const Send send{neighbour(comm, 1), out};
      Recv recv{neighbour(comm, -1), in};
      comm.exchange({&send, 1}, {&recv, 1});
    }
    const FlightSnapshot seen = comm.flight()->snapshot();
    ASSERT_EQ(seen.operations.size(), 2U);
    const FlightOperation& last = seen.operations.back();
    EXPECT_EQ(last.state, FlightState::done);
    EXPECT_EQ(last.communicator, "world");
    EXPECT_GE(last.end, last.begin);
    ASSERT_EQ(last.messages.size(), 2U);
    const FlightMessage& received = last.messages[0];
    EXPECT_FALSE(received.is_send);
    EXPECT_EQ(received.peer, neighbour(comm, -1));
    EXPECT_EQ(received.ordinal, 1U);
    EXPECT_EQ(received.capacity, 10U);
    EXPECT_EQ(received.bytes, static_cast<std::uint64_t>(neighbour(comm, -1)) + 1);
    EXPECT_TRUE(last.messages[1].is_send);
    EXPECT_EQ(last.messages[1].bytes, out.size());
    EXPECT_EQ(seen.communicators.front().sent[static_cast<std::size_t>(neighbour(comm, 1))], 2U);
  });
}

TEST(Flight, labels_are_the_outermost_and_the_innermost) {
  run_world("threads", 3, [](Communicator& comm) {
    Workspace work;
    barrier(comm);
    require_equal(comm, "test", "a = 1", work);
    {
      const FlightLabel outer(comm, "mine");
      const FlightLabel middle(comm, "hidden");
      barrier(comm);
    }
    comm.exchange({}, {});
    std::vector<std::string> labels;
    for (const FlightOperation& o : comm.flight()->snapshot().operations)
      if (labels.empty() || labels.back() != o.label) labels.push_back(o.label);
    EXPECT_EQ(labels, (std::vector<std::string>{"barrier", "agree/allgather", "mine/barrier", ""}));
  });
}

TEST(Flight, parts_and_decorators_record_into_the_whole) {
  run_world("threads", 5, [](Communicator& inner) {
    CountingCommunicator comm(inner);
    const auto part = comm.split(comm.rank() % 2, -comm.rank());
    barrier(*part);
    barrier(comm);
    const FlightSnapshot seen = inner.flight()->snapshot();
    EXPECT_EQ(part->flight(), inner.flight());
    ASSERT_EQ(seen.communicators.size(), 2U);
    const FlightLine& line = seen.communicators.back();
    EXPECT_EQ(line.name, comm.rank() % 2 == 0 ? "world/0:0" : "world/0:1");
    EXPECT_EQ(line.rank, part->rank());
    EXPECT_EQ(line.ranks, comm.rank() % 2 == 0 ? std::vector<int>({4, 2, 0}) : std::vector<int>({3, 1}));
    EXPECT_EQ(seen.operations.front().label, "split/allgather");
    EXPECT_EQ(seen.operations.back().communicator, "world");
  });
}

TEST(Flight, parts_that_are_gone_are_forgotten) {
  run_world("threads", 2, [](Communicator& comm) {
    for (int i = 0; i < 300; ++i) barrier(*comm.split(0, 0));
    EXPECT_LE(comm.flight()->snapshot().communicators.size(), FlightRecorder::kOperations);
    EXPECT_EQ(comm.flight()->snapshot().communicators.front().name, "world");
  });
}

TEST(Flight, ring_keeps_the_last_operations_and_allocates_nothing) {
  run_world("threads", 2, [](Communicator& comm) {
    barrier(comm);
    barrier(comm);
    const std::size_t before = allocations_of_this_thread();
    for (int i = 0; i < 400; ++i) barrier(comm);
    EXPECT_EQ(allocations_of_this_thread(), before);
    const FlightSnapshot seen = comm.flight()->snapshot();
    EXPECT_EQ(seen.operations.size(), FlightRecorder::kOperations);
    EXPECT_EQ(seen.operations.back().number, 401U);
    EXPECT_EQ(seen.operations.front().number, 402U - FlightRecorder::kOperations);
    EXPECT_EQ(seen.operations.back().messages.size(), 2U);
    EXPECT_EQ(seen.operations_begun, 402U);
  });
}

TEST(Flight, operation_with_more_messages_than_the_ring_has_says_so) {
  run_world("threads", 1, [](Communicator& comm) {
    const std::vector<Send> sends(FlightRecorder::kMessages, Send{0, {}});
    std::vector<Recv> recvs(FlightRecorder::kMessages, Recv{0, {}});
    comm.exchange(sends, recvs);
    const FlightOperation last = comm.flight()->snapshot().operations.back();
    EXPECT_EQ(last.forgotten, FlightRecorder::kMessages);
    EXPECT_EQ(last.messages.size(), FlightRecorder::kMessages);
    EXPECT_TRUE(last.messages.front().is_send);
  });
}

TEST(Flight, failed_and_abandoned_operations_keep_the_first_error) {
  auto comms = make_thread_world(2, std::chrono::milliseconds(50));
  Recv recv{1, {}};
  { const Pending open = comms[0]->start({}, {&recv, 1}); }
  EXPECT_EQ(comms[0]->flight()->snapshot().operations.back().state, FlightState::abandoned);
  EXPECT_THROW(comms[0]->exchange({}, {}), CommError);
  EXPECT_THROW(comms[0]->exchange({}, {&recv, 1}), CommError);
  const FlightSnapshot seen = comms[0]->flight()->snapshot();
  EXPECT_EQ(seen.operations.back().state, FlightState::failed);
  expect_contains(seen.error, "abandoned an exchange");
  EXPECT_GT(seen.error_time, 0);
}

TEST(Flight, timeout_leaves_a_failed_operation_with_its_receives) {
  auto comms = make_thread_world(3, std::chrono::milliseconds(50));
  std::vector<std::byte> room(7);
  Recv recv{2, room};
  EXPECT_THROW(comms[0]->exchange({}, {&recv, 1}), CommError);
  const FlightSnapshot seen = comms[0]->flight()->snapshot();
  EXPECT_EQ(seen.operations.back().state, FlightState::failed);
  EXPECT_EQ(seen.operations.back().messages.at(0).peer, 2);
  expect_contains(seen.error, "no answer within 0.05 s from rank 2");
}

TEST(Flight, another_thread_reads_while_ranks_exchange) {
  std::vector<std::shared_ptr<FlightRecorder>> recorders(3);
  std::atomic<int> known = 0;
  std::atomic<bool> is_over = false;
  std::jthread reader([&] {
    while (known.load() < 3) std::this_thread::yield();
    do {
      for (const auto& recorder : recorders) EXPECT_FALSE(recorder->to_json().empty());
    } while (!is_over.load());
  });
  run_world("threads", 3, [&](Communicator& comm) {
    recorders[static_cast<std::size_t>(comm.rank())] = comm.flight();
    ++known;
    for (int i = 0; i < 200; ++i) {
      comm.flight()->begin_step(static_cast<std::uint64_t>(i));
      const auto part = i % 50 == 0 ? comm.split(0, 0) : nullptr;
      barrier(part ? *part : comm);
      comm.flight()->end_step();
    }
  });
  is_over = true;
  reader.join();
  EXPECT_EQ(recorders[2]->snapshot().step, 199U);
  EXPECT_GE(recorders[2]->idle_seconds(), 0);
}

TEST(Flight, join_after_the_first_exchange_is_refused) {
  run_world("threads", 1, [](Communicator& comm) {
    const auto other = make_thread_world(1);
    other[0]->join_flight(comm, "epoch 2");
    EXPECT_EQ(comm.flight()->snapshot().communicators.back().name, "epoch 2");
    EXPECT_THROW(other[0]->join_flight(comm, "epoch 3"), UsageError);
  });
}

// tests/tools/doctor_test.cc reads dumps with a JSON parser.
TEST(Flight, dump_names_rank_versions_step_and_operations) {
  run_world("threads", 3, [](Communicator& comm) {
    comm.flight()->begin_step(7);
    barrier(comm);
    comm.flight()->note_error("a \"quoted\"\nerror");
    comm.flight()->note_error("its consequence");
    const std::string json = comm.flight()->to_json();
    for (const std::string& part : std::initializer_list<std::string>{
             R"("format":"oktopk-flight","version":1)",
             text_of(R"("library":")", library_version(), R"(","wire":)", kWireVersion),
             text_of(R"("rank":)", comm.rank(), R"(,"size":3,"transport":"threads")"), text_of(R"("pid":)", getpid()),
             R"("step":7,"in_step":true)", R"("error":"a \"quoted\"\u000aerror")",
             R"("label":"barrier","step":7,"state":"done")", text_of(R"("sends":[[)", neighbour(comm, 1), ",0,0]]"),
             text_of(R"("receives":[[)", neighbour(comm, -1), ",0,0,0]]")})
      expect_contains(json, part);
  });
}

TEST(Flight, file_of_a_dump_is_whole_and_alone) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / text_of("oktopk-flight-", getpid());
  std::filesystem::create_directory(folder);
  run_world("threads", 1, [&](Communicator& comm) {
    comm.flight()->write(folder / "dump.json");
    std::ifstream in(folder / "dump.json");
    std::stringstream text;
    text << in.rdbuf();
    EXPECT_TRUE(text.str().ends_with("}\n"));
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
    EXPECT_THROW(comm.flight()->write(folder / "no" / "dump.json"), UsageError);
  });
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace oktopk::flight_test
