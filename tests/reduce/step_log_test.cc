// SPDX-License-Identifier: Apache-2.0
// What Reducer::metrics() says of a step is what was selected, sent and applied.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "tests/support/training.h"

namespace oktopk::step_log_test {
namespace {

constexpr Index n = 500;
constexpr std::size_t k = 20;

double smallest(CooView v) {
  double least = std::numeric_limits<double>::infinity();
  for (const float x : v.val) least = std::min(least, double{std::fabs(x)});
  return least;
}

class ReducerMetrics : public testing::TestWithParam<TestedMethod> {};

TEST_P(ReducerMetrics, agree_with_what_was_sent_and_applied) {
  run_world("threads", 3, [](Communicator& comm) {
    CountingCommunicator counting(comm);
    Reducer reducer(counting, n, GetParam().options(k));
    for (std::uint64_t step = 0; step < 6; ++step) {
      counting.reset();
      const Update update = reducer.step(gradient_of(reducer, step, Input::gaussian));
      const StepMetrics metrics = reducer.metrics();
      EXPECT_EQ(metrics.step, step + 1);
      EXPECT_EQ(metrics.n, n);
      EXPECT_EQ(metrics.preset, GetParam().preset);
      EXPECT_EQ(metrics.messages, counting.traffic().messages_sent);
      EXPECT_EQ(metrics.wire_bytes, counting.traffic().bytes_sent);
      EXPECT_GT(metrics.wire_bytes, 0u);
      EXPECT_DOUBLE_EQ(metrics.dense_bytes, 2.0 * n * 2 / 3 * 4);
      EXPECT_EQ(metrics.is_dense, update.is_dense());
      EXPECT_EQ(metrics.gathered, update.size());
      EXPECT_EQ(metrics.refreshed, state_of(reducer).outcome.refreshed);
      EXPECT_FALSE(metrics.skipped);
      EXPECT_EQ(metrics.k, metrics.is_dense ? n : k);
      EXPECT_EQ(metrics.selected, reducer.sent().size());
      EXPECT_EQ(metrics.times.exchange, reducer.times().exchange);
      if (metrics.is_dense) {
        EXPECT_EQ(metrics.local_threshold, 0);
        EXPECT_EQ(metrics.global_threshold, 0);
      } else {
        EXPECT_EQ(metrics.local_threshold, smallest(reducer.sent()));
        EXPECT_EQ(metrics.global_threshold, smallest(state_of(reducer).outcome.update));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Methods, ReducerMetrics, testing::ValuesIn(all_methods()),
                         [](const auto& tested) { return tested.param.name(); });

const TestedMethod kCirculant{"circulant", ResidualKind::owner_memory};

TEST(ReducerMetricsOf, no_step_yet_are_zeros) {
  run_world("threads", 1, [](Communicator& comm) {
    const StepMetrics metrics = Reducer(comm, n, kCirculant.options(k)).metrics();
    EXPECT_EQ(metrics.step, 0u);
    EXPECT_EQ(metrics.n, n);
    EXPECT_EQ(metrics.k, 0u);
    EXPECT_EQ(metrics.gathered, 0u);
    EXPECT_EQ(metrics.dense_bytes, 0);  // alone
    EXPECT_EQ(metrics.global_threshold, 0);
  });
}

// No bound on times: only those that follow from each other.
TEST(ReducerMetricsOf, waits_are_parts_of_the_step) {
  for (const int P : {1, 3, 5})
    run_world("threads", P, [P](Communicator& comm) {
      Reducer reducer(comm, n, kCirculant.options(k));
      for (std::uint64_t step = 0; step < 4; ++step) {
        const auto gradient = gradient_of(reducer, step, Input::gaussian);
        const auto begin = std::chrono::steady_clock::now();
        reducer.step(gradient);
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
        const StepMetrics metrics = reducer.metrics();
        EXPECT_EQ(metrics.members, P);
        EXPECT_EQ(metrics.epoch, 0u);
        EXPECT_LE(metrics.idle, seconds.count());
        EXPECT_LE(metrics.longest_wait, metrics.idle * (1 + 1e-9));
        if (P == 1) {
          EXPECT_EQ(metrics.waited_for, -1);
          EXPECT_EQ(metrics.longest_wait, 0);
          continue;
        }
        EXPECT_GT(metrics.longest_wait, 0);
        EXPECT_TRUE(metrics.waited_for >= 0 && metrics.waited_for < P && metrics.waited_for != comm.rank());
      }
      EXPECT_THROW(reducer.step(std::vector<float>(n - 1)), UsageError);
      EXPECT_EQ(reducer.metrics().idle, 0);
    });
}

TEST(ReducerMetricsOf, a_warm_up_have_its_k) {
  run_world("threads", 3, [](Communicator& comm) {
    ReducerOptions options = kCirculant.options(k);
    options.warmup = {{1, 1.0}, {1, 0.25}};
    Reducer reducer(comm, n, options);
    for (const std::size_t expected : {std::size_t{n}, std::size_t{n / 4}, k}) {
      reducer.step(gradient_of(reducer, 0, Input::gaussian));
      EXPECT_EQ(reducer.metrics().k, expected);
      EXPECT_EQ(reducer.metrics().is_dense, expected == n);
      EXPECT_EQ(reducer.metrics().preset, "circulant");
    }
  });
}

TEST(ReducerMetricsOf, a_skipped_step_say_so) {
  run_world("threads", 3, [](Communicator& comm) {
    ReducerOptions options = kCirculant.options(k);
    options.nan_policy = NanPolicy::skip;
    Reducer reducer(comm, n, options);
    auto gradient = gradient_of(reducer, 0, Input::gaussian);
    reducer.step(gradient);
    if (comm.rank() == 1) gradient[7] = std::numeric_limits<float>::quiet_NaN();
    reducer.step(gradient);
    const StepMetrics metrics = reducer.metrics();
    EXPECT_TRUE(metrics.skipped);
    EXPECT_FALSE(metrics.refreshed);
    EXPECT_EQ(metrics.step, 1u);
    EXPECT_EQ(metrics.k, 0u);
    EXPECT_EQ(metrics.selected, 0u);
    EXPECT_EQ(metrics.gathered, 0u);
    EXPECT_EQ(metrics.local_threshold, 0);
    EXPECT_EQ(metrics.global_threshold, 0);
    EXPECT_GT(metrics.messages, 0u);  // the notes
  });
}

TEST(ReducerMetricsOf, a_flush_are_those_of_a_dense_step) {
  run_world("threads", 3, [](Communicator& comm) {
    Reducer reducer(comm, n, kCirculant.options(k));
    reducer.step(gradient_of(reducer, 0, Input::gaussian));
    reducer.flush();
    const StepMetrics metrics = reducer.metrics();
    EXPECT_TRUE(metrics.is_dense);
    EXPECT_EQ(metrics.step, 1u);
    EXPECT_EQ(metrics.gathered, n);
    EXPECT_EQ(metrics.selected, 0u);
  });
}

TEST(ReducerMetricsOf, a_refused_step_are_zeros) {
  run_world("threads", 3, [](Communicator& comm) {
    Reducer reducer(comm, n, kCirculant.options(k));
    reducer.step(gradient_of(reducer, 0, Input::gaussian));
    EXPECT_THROW(reducer.step(std::vector<float>(n - 1)), UsageError);
    EXPECT_EQ(reducer.metrics().gathered, 0u);
    EXPECT_EQ(reducer.metrics().global_threshold, 0);
  });
}

TEST(ReducerMetricsOf, a_loaded_state_are_zeros) {
  run_world("threads", 2, [](Communicator& comm) {
    Reducer reducer(comm, n, kCirculant.options(k));
    reducer.step(gradient_of(reducer, 0, Input::gaussian));
    reducer.load(reducer.save());
    EXPECT_EQ(reducer.metrics().selected, 0u);
    EXPECT_EQ(reducer.metrics().gathered, 0u);
    EXPECT_EQ(reducer.metrics().local_threshold, 0);
  });
}

}  // namespace
}  // namespace oktopk::step_log_test
