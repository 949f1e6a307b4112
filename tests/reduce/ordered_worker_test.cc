// SPDX-License-Identifier: Apache-2.0
// Tasks run in their order whatever the order of their release; errors and stops end a run.
#include "oktopk/reduce/ordered_worker.h"

#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>

namespace oktopk::ordered_worker_test {
namespace {

TEST(OrderedWorker, tasks_run_in_order_whatever_the_order_of_release) {
  OrderedWorker worker;
  for (const std::vector<std::size_t>& order : {std::vector<std::size_t>{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}}) {
    std::vector<std::size_t> ran;
    worker.start(std::vector<std::size_t>(4, 1), [&](std::size_t i) {
      ran.push_back(i);
      return true;
    });
    for (const std::size_t i : order) worker.release(i);
    worker.finish();
    EXPECT_EQ(ran, (std::vector<std::size_t>{0, 1, 2, 3}));
    EXPECT_EQ(worker.done(), 4u);
  }
}

TEST(OrderedWorker, release_from_many_threads_runs_each_task_once) {
  constexpr std::size_t count = 64;
  OrderedWorker worker;
  std::vector<int> given(count, 0);
  std::vector<int> seen(count, 0);
  worker.start(std::vector<std::size_t>(count, 1), [&](std::size_t i) {
    seen[i] += given[i];
    return true;
  });
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < 4; ++r)
    threads.emplace_back([&, r] {
      for (std::size_t i = count - 1 - r; i < count; i -= 4) {
        given[i] = 1;
        worker.release(i);
      }
    });
  for (std::thread& thread : threads) thread.join();
  worker.finish();
  EXPECT_EQ(seen, std::vector<int>(count, 1));
}

TEST(OrderedWorker, exception_ends_the_run_and_the_next_one_works) {
  OrderedWorker worker;
  std::size_t ran = 0;
  worker.start(std::vector<std::size_t>(3, 1), [&](std::size_t i) {
    ++ran;
    if (i == 1) throw std::runtime_error("one");
    return true;
  });
  for (const std::size_t i : {0, 1, 2}) worker.release(i);
  EXPECT_THROW(worker.finish(), std::runtime_error);
  EXPECT_EQ(ran, 2u);
  EXPECT_EQ(worker.done(), 1u);
  worker.start(std::vector<std::size_t>(1, 1), [&](std::size_t) { return true; });
  worker.release(0);
  EXPECT_NO_THROW(worker.finish());
}

TEST(OrderedWorker, task_that_says_no_leaves_the_rest_out) {
  OrderedWorker worker;
  worker.start(std::vector<std::size_t>(3, 1), [](std::size_t i) { return i != 1; });
  for (const std::size_t i : {0, 1, 2}) worker.release(i);
  worker.finish();
  EXPECT_EQ(worker.done(), 2u);
}

TEST(OrderedWorker, stop_tells_whether_the_run_was_over) {
  OrderedWorker never;
  EXPECT_TRUE(never.stop());
  OrderedWorker complete;
  complete.start(std::vector<std::size_t>(1, 1), [](std::size_t) { return true; });
  complete.release(0);
  complete.finish();
  EXPECT_TRUE(complete.stop());
  OrderedWorker halfway;
  halfway.start(std::vector<std::size_t>(2, 1), [](std::size_t) { return true; });
  halfway.release(0);
  EXPECT_FALSE(halfway.stop());
}

}  // namespace
}  // namespace oktopk::ordered_worker_test
