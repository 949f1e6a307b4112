// SPDX-License-Identifier: Apache-2.0
#include "oktopk/device/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <set>
#include <stdexcept>

#include "tests/support/child.h"

namespace oktopk::thread_pool_test {
namespace {

TEST(ThreadPool, run_calls_every_part_once) {
  for (const std::size_t threads : {1U, 2U, 5U}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (int round = 0; round < 200; ++round)
      for (std::size_t parts = 0; parts <= threads; ++parts) {
        std::vector<int> calls(threads, 0);
        pool.run(parts, [&](std::size_t part) { ++calls[part]; });
        for (std::size_t part = 0; part < threads; ++part) ASSERT_EQ(calls[part], part < parts ? 1 : 0);
      }
  }
}

TEST(ThreadPool, caller_does_all_parts_in_a_child_of_fork) {
  auto pool = std::make_unique<ThreadPool>(3);
  pool->run(3, [](std::size_t) {});
  EXPECT_TRUE(holds_in_child([&] {
    std::vector<int> calls(3, 0);
    pool->run(3, [&](std::size_t part) { ++calls[part]; });
    pool.reset();
    return calls == std::vector<int>{1, 1, 1};
  }));
  pool->run(3, [](std::size_t) {});
}

TEST(ThreadPool, run_uses_the_caller_and_other_threads) {
  ThreadPool pool(3);
  std::vector<std::thread::id> ids(3);
  pool.run(3, [&](std::size_t part) { ids[part] = std::this_thread::get_id(); });
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_EQ(std::set<std::thread::id>(ids.begin(), ids.end()).size(), 3u);
}

// Each part waits for the others: this ends only if all run at the same time.
TEST(ThreadPool, run_is_concurrent) {
  ThreadPool pool(4);
  std::atomic<int> arrived = 0;
  pool.run(4, [&](std::size_t) {
    ++arrived;
    while (arrived < 4) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 4);
}

TEST(ThreadPool, run_throws_what_the_first_failing_part_threw_after_all_have_ended) {
  ThreadPool pool(4);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> ended = 0;
    try {
      pool.run(4, [&](std::size_t part) {
        ++ended;
        if (part >= 2) throw std::runtime_error("part " + std::to_string(part));
      });
      FAIL() << "nothing thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "part 2");
    }
    EXPECT_EQ(ended, 4);
  }
  EXPECT_THROW(pool.run(1, [](std::size_t) { throw std::logic_error("caller"); }), std::logic_error);
  int calls = 0;
  pool.run(1, [&](std::size_t) { ++calls; });
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace oktopk::thread_pool_test
