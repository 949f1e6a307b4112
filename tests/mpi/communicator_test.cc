// SPDX-License-Identifier: Apache-2.0
// CommunicatorConformance on the transport "mpi", for the size this program was started with, and
// what is special about MPI: chunks, foreign communicators, failures that only one rank sees.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <tuple>

#include "oktopk/comm/mpi_comm.h"
#include "oktopk/laws/faults.h"
#include "tests/support/communicator_conformance.h"

namespace oktopk::communicator_test {
namespace {

using namespace std::chrono_literals;
using conformance::Check;
using conformance::Message;

constexpr auto kTimeout = 30s;

// A check that kills cannot tell the other ranks: their next test must not begin before it ends.
void meet() { MPI_Barrier(MPI_COMM_WORLD); }

// Chunks of the default size, and so small that most messages need a derived type.
class MpiConformance : public testing::TestWithParam<std::tuple<std::size_t, Check>> {};

TEST_P(MpiConformance, holds) {
  const auto& [chunk_bytes, check] = GetParam();
  MpiOptions options;
  options.chunk_bytes = chunk_bytes;
  options.timeout = kTimeout;
  if (check.kills) options.timeout = conformance::kShortTimeout;
  check.run(*make_mpi_world(options));
  meet();
}

INSTANTIATE_TEST_SUITE_P(All, MpiConformance,
                         testing::Combine(testing::Values(MpiOptions{}.chunk_bytes, 64u, 1u),
                                          testing::ValuesIn(conformance::kChecks)),
                         [](const auto& test) {
                           return "chunk_" + std::to_string(std::get<0>(test.param)) + "_" +
                                  std::get<1>(test.param).name;
                         });

TEST(MpiCommunicator, uses_a_foreign_communicator_without_mixing_messages) {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm backwards = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &backwards);
  {
    const auto comm = make_mpi_communicator(backwards, {kTimeout});
    EXPECT_EQ(comm->rank(), size - 1 - rank);
    EXPECT_EQ(comm->size(), size);
    // The user's own message with our tag is under way while ours pass.
    const int next = neighbour(*comm, 1);
    const int previous = neighbour(*comm, -1);
    const int mine = comm->rank();
    int theirs = -1;
    MPI_Request requests[2];
    MPI_Irecv(&theirs, 1, MPI_INT, previous, 0, backwards, &requests[0]);
    MPI_Isend(&mine, 1, MPI_INT, next, 0, backwards, &requests[1]);
    conformance::survives_a_storm(*comm);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    EXPECT_EQ(theirs, previous);
  }
  MPI_Comm_free(&backwards);
}

TEST(MpiCommunicator, null_handle_or_bad_options_are_usage_errors) {
  EXPECT_THROW(make_mpi_communicator(MPI_COMM_NULL), UsageError);
  EXPECT_THROW(make_mpi_world({.timeout = 0s}), UsageError);
  EXPECT_THROW(make_mpi_world({.chunk_bytes = 0}), UsageError);
  EXPECT_THROW(make_mpi_world({.chunk_bytes = std::size_t{1} << 31}), UsageError);
  meet();
}

// Open MPI 4.1 itself writes all of it, over whatever lies behind the buffer.
TEST(MpiCommunicator, large_message_that_is_too_long_is_not_written_behind_the_buffer) {
  for (const std::size_t capacity : {0U, 100U, 1'000'000U}) {
    const auto comm = make_mpi_world({.timeout = 500ms});
    const Message out(std::size_t{1} << 22, std::byte{7});
    Message in(out.size(), std::byte{0xee});
    const Send send{neighbour(*comm, 1), out};
    Recv recv{neighbour(*comm, -1), std::span(in).first(capacity), 0};
    EXPECT_THROW(comm->exchange({&send, 1}, {&recv, 1}), CommError);
    EXPECT_EQ(static_cast<std::size_t>(std::count(in.begin(), in.end(), std::byte{0xee})), in.size());
    meet();
  }
}

TEST(MpiCommunicator, large_send_without_receiver_times_out) {
  {
    const auto comm = make_mpi_world({.timeout = 100ms});
    const Message out(std::size_t{1} << 22);
    const Send send{neighbour(*comm, 1), out};
    if (comm->size() > 1) {
      EXPECT_THROW(comm->exchange({&send, 1}, {}), CommError);
    }
  }
  meet();
}

TEST(MpiCommunicator, dead_rank_fails_everyone_within_the_timeout) {
  const auto comm = make_mpi_world({.timeout = 200ms});
  FaultyCommunicator faulty(*comm, {comm->rank() == 0 ? FaultKind::die : FaultKind::none, 3, 0});
  if (comm->size() > 1) {
    EXPECT_THROW(
        {
          for (;;) barrier(faulty);
        },
        CommError);
  }
  meet();
}

// It came to a barrier, not to the split: its messages are there, but no wish.
TEST(MpiCommunicator, split_and_host_fail_in_time_when_a_rank_goes_another_way) {
  for (const bool splits : {true, false}) {
    const auto comm = make_mpi_world({.timeout = 200ms});
    if (comm->size() < 2) GTEST_SKIP() << "needs 2 ranks";
    const auto act = [&] { return splits ? (comm->split(0, 0), 0) : comm->host(); };
    if (comm->rank() == 0) {
      EXPECT_THROW(
          {
            barrier(*comm);
            barrier(*comm);
          },
          CommError);
    } else {
      EXPECT_THROW(act(), CommError);
    }
    meet();
  }
}

// Messages between the same two ranks at the same time, over a communicator, its parts and theirs.
TEST(MpiCommunicator, parts_keep_their_messages_apart) {
  const auto comm = make_mpi_world({.timeout = kTimeout});
  std::vector<std::unique_ptr<Communicator>> others;
  // Only some ranks split further: the ranks have made different numbers of parts.
  others.push_back(comm->split(comm->rank() == 0 ? 0 : 1, 0));
  if (comm->rank() != 0) others.push_back(others.back()->split(0, 0));
  const auto second = comm->split(0, -comm->rank());
  const auto third = second->split(0, -second->rank());
  const std::vector<Communicator*> wholes = {comm.get(), second.get(), third.get()};
  std::vector<Message> out, in(wholes.size(), Message(100));
  std::vector<Send> sends(wholes.size());
  std::vector<Recv> recvs(wholes.size());
  std::vector<Pending> pendings;
  for (std::size_t i = 0; i < wholes.size(); ++i) {
    const int next = comm->size() - 1 - wholes[i]->rank();
    out.push_back(conformance::message(wholes[i]->rank(), next, static_cast<int>(i), 100));
    sends[i] = {next, out[i]};
  }
  for (std::size_t i = 0; i < wholes.size(); ++i) {
    // Receives in the opposite order: only the tag tells the messages apart.
    const std::size_t j = wholes.size() - 1 - i;
    recvs[j] = {comm->size() - 1 - wholes[j]->rank(), in[j], 0};
    pendings.push_back(wholes[i]->start({&sends[i], 1}, {}));
    pendings.push_back(wholes[j]->start({}, {&recvs[j], 1}));
  }
  for (Pending& pending : pendings) pending.wait();
  for (std::size_t i = 0; i < wholes.size(); ++i)
    EXPECT_EQ(in[i], conformance::message(recvs[i].peer, wholes[i]->rank(), static_cast<int>(i), 100));
}

TEST(MpiCommunicator, outlives_the_session_that_another_one_owns) {
  { const MpiSession nested; }  // does not finalise what it did not initialise
  EXPECT_TRUE(mpi_is_running());
  EXPECT_TRUE(mpi_available());
}

}  // namespace
}  // namespace oktopk::communicator_test
