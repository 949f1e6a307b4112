// SPDX-License-Identifier: Apache-2.0
#include "lab/kernels/timing.h"

#include <gtest/gtest.h>

#include <string>

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

}  // namespace
}  // namespace oktopk::timing_test
