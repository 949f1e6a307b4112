// SPDX-License-Identifier: Apache-2.0
// Runs the tests of this folder as one MPI program: every rank runs every test, in the same order.
// Rank 0 prints as usual, the others only what fails. The exit status is nonzero on every rank if a
// test failed on any.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <string_view>

#include "oktopk/comm/collectives.h"
#include "oktopk/comm/transports.h"

namespace {

// Says which rank failed where; on the silent ranks, that is all there is to see.
class FailurePrinter : public testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}

  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::printf("rank %d: %s:%d: %s\n", rank_, result.file_name() != nullptr ? result.file_name() : "unknown file",
                result.line_number(), result.summary());
    std::fflush(stdout);
  }

 private:
  int rank_;
};

}  // namespace

// With --one-thread MPI is initialised as by a program of one thread (threads_test.cc).
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const bool one_thread = argc > 1 && std::string_view(argv[1]) == "--one-thread";
  const oktopk::MpiSession session(one_thread ? oktopk::MpiThreads::first : oktopk::MpiThreads::any);
  const auto world = oktopk::make_mpi_world();
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  if (world->rank() != 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter(world->rank()));
  }
  const auto failed = static_cast<std::uint32_t>(RUN_ALL_TESTS());
  oktopk::Workspace work;
  return oktopk::allreduce_small(*world, failed, oktopk::Reduction::max, work) == 0 ? 0 : 1;
}
