// SPDX-License-Identifier: Apache-2.0
// Which threads may call MPI. The program is also run with MPI initialised for one thread only
// (main.cc), where an MPI that has this level shows the refusals.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <gtest/gtest.h>
#include <mpi.h>

#include "oktopk/comm/transports.h"
#include "oktopk/laws/faults.h"
#include "oktopk/reduce/bucketed_reducer.h"
#include "tests/support/message.h"

namespace oktopk::threads_test {
namespace {

ReducerOptions options() {
  ReducerOptions options;
  options.preset = "circulant";
  options.k = 10;
  return options;
}

TEST(MpiThreads, bucketed_reducer_needs_a_level_that_allows_its_thread) {
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  const auto comm = make_mpi_world();
  JitterCommunicator decorated(*comm, 1);
  const std::string message = message_of([&] { const BucketedReducer reducer(decorated, {60, 40}, options()); });
  if (level >= MPI_THREAD_SERIALIZED) {
    EXPECT_EQ(message, "accepted");
    return;
  }
  const std::string found = level == MPI_THREAD_SINGLE ? "MPI_THREAD_SINGLE" : "MPI_THREAD_FUNNELED";
  for (const std::string& part : {"initialised with " + found, std::string("needs MPI_THREAD_SERIALIZED"),
                                  std::string("MpiSession"), std::string("MPI_Init_thread")})
    EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(MpiThreads, reducer_on_the_first_thread_works_at_every_level) {
  const auto comm = make_mpi_world();
  Reducer reducer(*comm, 100, options());
  EXPECT_EQ(message_of([&] { reducer.step(std::vector<float>(100, 1.0F)); }), "accepted");
}

TEST(MpiThreads, session_takes_what_the_program_initialised) {
  EXPECT_EQ(message_of([] { const MpiSession session; }), "accepted");
}

}  // namespace
}  // namespace oktopk::threads_test
