// SPDX-License-Identifier: Apache-2.0
// CommunicatorConformance on the transport "mpi", for the size this program was started with, and
// what is special about MPI: chunks, foreign communicators, failures that only one rank sees.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <gtest/gtest.h>
#include <mpi.h>

#include <chrono>
#include <string>
#include <tuple>

#include "oktopk/comm/decorators.h"
#include "oktopk/comm/mpi.h"
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
    const auto comm = make_mpi_communicator(MPI_Comm_c2f(backwards), {kTimeout});
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
  EXPECT_THROW(make_mpi_communicator(MPI_Comm_c2f(MPI_COMM_NULL)), UsageError);
  EXPECT_THROW(make_mpi_world({.timeout = 0s}), UsageError);
  EXPECT_THROW(make_mpi_world({.chunk_bytes = 0}), UsageError);
  EXPECT_THROW(make_mpi_world({.chunk_bytes = std::size_t{1} << 31}), UsageError);
  meet();
}

TEST(MpiCommunicator, timeout_names_the_silent_peers) {
  const auto comm = make_mpi_world({.timeout = 500ms});
  if (comm->size() < 3) GTEST_SKIP() << "needs 3 ranks";
  if (comm->rank() == 0) {
    Message in[2] = {Message(10), Message(10)};
    Recv recvs[] = {{1, in[0], 0}, {2, in[1], 0}};
    try {
      comm->exchange({}, recvs);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("from rank 2"), std::string::npos) << error.what();
    }
    EXPECT_EQ(recvs[0].size, 5u);
  } else if (comm->rank() == 1) {
    const Message out(5);
    const Send send{0, out};
    comm->exchange({&send, 1}, {});
  }
  meet();
}

TEST(MpiCommunicator, large_send_without_receiver_times_out) {
  {
    const auto comm = make_mpi_world({.timeout = 100ms});
    static const Message out(std::size_t{1} << 22);  // MPI may read it until the end
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

TEST(MpiCommunicator, split_without_a_rank_times_out) {
  const auto comm = make_mpi_world({.timeout = 100ms});
  if (comm->size() > 1 && comm->rank() != 0) {
    EXPECT_THROW(comm->split(0, 0), CommError);
  }
  meet();
}

TEST(MpiCommunicator, outlives_the_session_that_another_one_owns) {
  { const MpiSession nested; }  // does not finalise what it did not initialise
  EXPECT_TRUE(mpi_is_running());
  EXPECT_TRUE(mpi_available());
}

}  // namespace
}  // namespace oktopk::communicator_test
