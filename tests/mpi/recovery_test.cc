// SPDX-License-Identifier: Apache-2.0
// The aftermath of a failure on real processes: buffers that their owner frees while MPI still
// has the message, ranks that come late, and the next world, in which all go on.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "oktopk/comm/collectives.h"
#include "oktopk/comm/transports.h"
#include "oktopk/laws/faults.h"
#include "oktopk/laws/inputs.h"
#include "oktopk/reduce/reducer.h"
#include "tests/support/fleeting.h"
#include "tests/support/message.h"
#include "tests/support/training.h"

namespace oktopk::recovery_test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kLarge = std::size_t{1} << 22;  // no MPI sends that much unasked

std::unique_ptr<Communicator> fleeting_world(Communicator::Duration timeout) {
  return std::make_unique<FleetingCommunicator>(make_mpi_world({.timeout = timeout}));
}

// Every rank waits for the next one, rank 0 for nobody: it gives up, and all others name it, long before the timeout.
TEST(MpiRecovery, rank_that_gives_up_is_named_by_all) {
  const auto sound = make_mpi_world();
  if (sound->size() < 2) GTEST_SKIP() << "needs 2 ranks";
  const auto whole = make_mpi_world({.timeout = 600s});
  const auto part = whole->split(0, whole->size() - whole->rank());  // another order of the ranks
  for (Communicator* comm : {part.get(), whole.get()}) {
    if (comm->rank() == 0) {
      comm->kill();
    } else {
      std::byte byte{};
      Recv recv{neighbour(*comm, 1), {&byte, 1}, 0};
      expect_error<CommError>("rank 0 gave up: an exchange was abandoned", [&] { comm->exchange({}, {&recv, 1}); });
    }
    barrier(*sound);
  }
}

TEST(MpiRecovery, late_peer_gets_a_message_whose_buffer_is_freed) {
  const auto sound = make_mpi_world();
  if (sound->size() < 2) GTEST_SKIP() << "needs 2 ranks";
  auto comm = fleeting_world(sound->rank() == 0 ? 200ms : 30s);
  Bytes bytes(kLarge);
  Recv recv{0, bytes, 0};
  if (sound->rank() == 0) {
    std::fill(bytes.begin(), bytes.end(), std::byte{7});
    const Send send{1, bytes};
    EXPECT_THROW(comm->exchange({&send, 1}, {}), CommError);
    comm.reset();
  }
  barrier(*sound);
  if (sound->rank() == 1) comm->exchange({}, {&recv, 1});
  barrier(*sound);  // in which rank 0 lets MPI send
  if (sound->rank() == 1) {
    EXPECT_EQ(recv.size, kLarge);
    EXPECT_EQ(static_cast<std::size_t>(std::count(bytes.begin(), bytes.end(), std::byte{7})), kLarge);
  }
}

// Where MPI needs the sender's help, the receive has begun and cannot be cancelled.
TEST(MpiRecovery, late_peer_sends_to_a_receive_whose_buffer_is_freed) {
  const auto sound = make_mpi_world();
  if (sound->size() < 2) GTEST_SKIP() << "needs 2 ranks";
  auto comm = fleeting_world(200ms);
  const auto try_to = [&](Pending pending) {
    try {
      pending.wait();
    } catch (const CommError&) {
      comm.reset();
    }
  };
  Bytes bytes(kLarge);
  Recv recv{1, bytes, 0};
  const Send send{0, bytes};
  if (sound->rank() == 0) try_to(comm->start({}, {&recv, 1}));
  if (sound->rank() == 1) {
    Pending pending = comm->start({&send, 1}, {});
    std::this_thread::sleep_for(1s);  // rank 0 gives up
    try_to(std::move(pending));
  }
  barrier(*sound);
  barrier(*sound);
}

// The parts have no MPI communicator of their own: the whole must not be freed under them.
TEST(MpiRecovery, parts_live_on_when_the_whole_has_failed_and_is_gone) {
  const auto sound = make_mpi_world();
  if (sound->size() < 2) GTEST_SKIP() << "needs 2 ranks";
  auto whole = make_mpi_world({.timeout = 30s});
  const auto part = whole->split(0, -whole->rank());
  barrier(*sound);  // all have their part: kill() ends the split() of others
  whole->kill();
  whole.reset();
  barrier(*part);
  const int mine = part->rank();
  std::vector<int> all(static_cast<std::size_t>(part->size()));
  Workspace work;
  allgather(*part, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), work);
  for (std::size_t r = 0; r < all.size(); ++r) EXPECT_EQ(all[r], static_cast<int>(r));
}

class MpiRecoveryOf : public testing::TestWithParam<std::string> {};

// Every rank makes its Reducer anew, and the step after the failure is right.
TEST_P(MpiRecoveryOf, preset_goes_on_in_a_new_world_after_a_timeout) {
  constexpr Index n = 1'000'000;
  const auto sound = make_mpi_world();
  const int rank = sound->rank();
  if (sound->size() == 1) GTEST_SKIP() << "no peers";
  const ReducerOptions options = preset_options(GetParam(), n / 20);
  const auto gradient = make_input(Input::dyadic, n, rank, 0, 1);
  Reducer reference(*sound, n, options);
  const auto expected = bits_of(reference.step(gradient));
  const auto messages = sound->sent_so_far().messages;
  for (const std::uint64_t back : {1U, 2U}) {  // the last messages of a step are large
    const auto doomed = fleeting_world(300ms);
    const Fault stall{FaultKind::stall, messages - back, 0};
    FaultyCommunicator faulty(*doomed, rank == 1 ? stall : Fault{});
    Reducer reducer(faulty, n, options);
    const auto steps = [&] {
      for (int step = 0; step < 4; ++step) reducer.step(gradient);
    };
    EXPECT_THROW(steps(), CommError);
  }
  const auto comm = fleeting_world(60s);
  Reducer reducer(*comm, n, options);
  EXPECT_EQ(bits_of(reducer.step(gradient)), expected);
}

INSTANTIATE_TEST_SUITE_P(Presets, MpiRecoveryOf, testing::Values("oktopk", "dense", "circulant"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace oktopk::recovery_test
