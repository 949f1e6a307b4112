// SPDX-License-Identifier: Apache-2.0
#include "oktopk/base/timer.h"

#include <gtest/gtest.h>

#include <thread>

namespace oktopk::timer_test {
namespace {

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

}  // namespace
}  // namespace oktopk::timer_test
