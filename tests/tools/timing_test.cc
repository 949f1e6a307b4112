// SPDX-License-Identifier: Apache-2.0
#include "tools/kernels/timing.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "oktopk/comm/collectives.h"
#include "oktopk/comm/transports.h"

namespace oktopk::timing_test {
namespace {

TEST(Timing, bodies_take_turns_and_the_first_round_is_not_counted) {
  std::string order;
  const TimedPair times = time_in_turns(
      2, [&] { order += 'k'; }, [&] { order += 'l'; }, [&] { order += 'p'; });
  EXPECT_EQ(order, "pkplpkplpkpl");
  EXPECT_GE(times.kernel.median, times.kernel.least);
}

TEST(Timing, short_bodies_run_several_times_unless_they_need_preparation) {
  int calls = 0;
  const TimedPair times = time_in_turns(3, [&] { ++calls; });
  EXPECT_GT(calls, 4);
  EXPECT_GT(times.kernel.median, 0);
  EXPECT_EQ(times.limit.median, 0);
  calls = 0;
  time_in_turns(
      3, [&] { ++calls; }, {}, [] {});
  EXPECT_EQ(calls, 4);
}

TEST(Timing, summary_has_median_least_and_deviation) {
  const Times times = summarise({4, 1, 2, 100, 3});
  EXPECT_EQ(times.median, 3);
  EXPECT_EQ(times.least, 1);
  EXPECT_EQ(times.deviation, 1);
  EXPECT_EQ(summarise({}).median, 0);
}

TEST(Timer, lap_gives_the_time_since_the_last_one) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  Timer timer;
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const double first = timer.lap();
  const double second = timer.lap();
  const double all = std::chrono::duration<double>(Clock::now() - begin).count();
  EXPECT_GE(first, 0.005);
  EXPECT_GE(second, 0);
  EXPECT_LE(first + second, all);
}

TEST(TimingCommunicator, passes_messages_on_and_its_parts_share_the_clock) {
  run_threads(3, [](Communicator& comm) {
    TimingCommunicator timing(comm);
    EXPECT_EQ(timing.seconds(), 0);
    barrier(timing);
    const double before = timing.seconds();
    EXPECT_GT(before, 0);
    const auto part = timing.split(0, timing.rank());
    EXPECT_EQ(part->rank(), comm.rank());
    const double after_split = timing.seconds();
    barrier(*part);
    EXPECT_GT(timing.seconds(), after_split);
    timing.reset();
    EXPECT_EQ(timing.seconds(), 0);
  });
}

}  // namespace
}  // namespace oktopk::timing_test
