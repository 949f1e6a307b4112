// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/scheduler.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace oktopk::faults::scheduler_test {

using namespace std::chrono_literals;

// Three actors that take turns by chance; the order of their notes is the run.
std::string order_of(std::uint64_t seed) {
  Scheduler scheduler(seed);
  std::string order;
  for (const char name : {'a', 'b', 'c'}) {
    const int id = name - 'a';
    scheduler.add(std::string(1, name), [&scheduler, &order, name, id] {
      for (int i = 0; i < 5; ++i) {
        order += name;
        scheduler.sleep(id, Duration(scheduler.random().below(100)));
      }
    });
  }
  scheduler.run();
  return order;
}

TEST(FaultScheduler, run_of_one_seed_repeats_and_of_others_differs) {
  EXPECT_EQ(order_of(7), order_of(7));
  EXPECT_NE(order_of(7), order_of(8));
  EXPECT_EQ(order_of(7).size(), 15u);
}

TEST(FaultScheduler, virtual_day_ends_and_advances_the_clock) {
  Scheduler scheduler(1);
  scheduler.add("sleeper", [&] { scheduler.sleep(0, 24h); });
  scheduler.run();
  EXPECT_EQ(scheduler.now(), 24h);
}

TEST(FaultScheduler, killed_actor_unwinds_and_paused_one_goes_on_later) {
  Scheduler scheduler(1);
  bool is_unwound = false, is_over = false;
  Duration resumed{};
  scheduler.add("victim", [&] {
    struct AtEnd {
      bool& flag;
      ~AtEnd() { flag = true; }
    } at_end{is_unwound};
    scheduler.sleep(0, 1h);
    is_over = true;
  });
  scheduler.add("sleeper", [&] {
    scheduler.sleep(1, 1s);
    resumed = scheduler.now();
  });
  scheduler.after(10ms, [&] { scheduler.kill(0); });
  scheduler.after(20ms, [&] { scheduler.pause(1); });
  scheduler.after(1min, [&] { scheduler.resume(1); });
  scheduler.run();
  EXPECT_TRUE(is_unwound);
  EXPECT_FALSE(is_over);
  EXPECT_EQ(resumed, 1min);
}

TEST(FaultScheduler, run_ends_although_an_actor_is_paused_for_ever) {
  Scheduler scheduler(1);
  scheduler.add("stopped", [&] { scheduler.sleep(0, 1s); });
  scheduler.after(1ms, [&] { scheduler.pause(0); });
  scheduler.run();
  EXPECT_TRUE(scheduler.is_killed(0));
  EXPECT_TRUE(scheduler.failures().empty());
}

TEST(FaultScheduler, run_that_does_not_end_is_a_failure_with_a_report) {
  Scheduler scheduler(1);
  scheduler.add("endless", [&] {
    for (;;) scheduler.sleep(0, 24h);
  });
  scheduler.run();
  ASSERT_EQ(scheduler.failures().size(), 1u);
  EXPECT_NE(scheduler.report().find("FAILURE: the run does not end"), std::string::npos);
}

}  // namespace oktopk::faults::scheduler_test
