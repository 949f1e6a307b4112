// SPDX-License-Identifier: Apache-2.0
// What BucketedReducer::metrics() says of a step is what all buckets together selected, sent and
// applied.
#include <gtest/gtest.h>

#include <limits>

#include "tests/reduce/bucketed.h"

namespace oktopk::bucketed_reducer_metrics_test {
namespace {

constexpr std::size_t k = 30;

void expect_nothing_happened(const StepMetrics& metrics) {
  EXPECT_EQ(metrics.n, kValues);
  EXPECT_EQ(metrics.k, 0u);
  EXPECT_EQ(metrics.selected, 0u);
  EXPECT_EQ(metrics.gathered, 0u);
  EXPECT_FALSE(metrics.is_dense);
  EXPECT_FALSE(metrics.refreshed);
}

class BucketedMetrics : public testing::TestWithParam<std::string> {};

TEST_P(BucketedMetrics, agree_with_what_all_buckets_sent_and_applied) {
  for (const bool traced : {false, true})
    run_world("threads", 3, [&](Communicator& comm) {
      Trace trace;
      CountingCommunicator counting(comm);
      ReducerOptions options = preset_options(GetParam(), k);
      if (traced) options.trace = &trace;
      BucketedReducer bucketed(counting, kTensors, options, kSize);
      for (std::uint64_t step = 0; step < 4; ++step) {
        counting.reset();
        const Update update = bucketed.step(gradient_of(comm, step));
        const StepMetrics metrics = bucketed.metrics();
        EXPECT_EQ(metrics.step, step + 1);
        EXPECT_EQ(metrics.n, kValues);
        EXPECT_EQ(metrics.preset, GetParam());
        EXPECT_EQ(metrics.messages, counting.traffic().messages_sent);
        EXPECT_EQ(metrics.wire_bytes, counting.traffic().bytes_sent);
        EXPECT_GT(metrics.wire_bytes, 0u);
        EXPECT_EQ(metrics.selected, bucketed.sent().size());
        EXPECT_EQ(metrics.gathered, update.size());
        EXPECT_EQ(metrics.is_dense, update.is_dense());
        EXPECT_FALSE(metrics.skipped);
        EXPECT_EQ(metrics.times.exchange, bucketed.times().exchange);
        std::size_t aimed_at = 0;
        bool refreshed = false;
        for (std::size_t b = 0; b < bucketed.buckets().size(); ++b) {
          const Reducer& reducer = bucketed.reducer(b);
          aimed_at += metrics.is_dense ? reducer.n() : reducer.k();
          refreshed = refreshed || state_of(reducer).outcome.refreshed;
        }
        EXPECT_EQ(metrics.k, aimed_at);
        EXPECT_EQ(metrics.refreshed, refreshed);
        EXPECT_DOUBLE_EQ(metrics.dense_bytes, 2.0 * kValues * 2 / 3 * 4);
        EXPECT_EQ(metrics.local_threshold, 0);
        EXPECT_EQ(metrics.global_threshold, 0);
      }
    });
}

INSTANTIATE_TEST_SUITE_P(Presets, BucketedMetrics, testing::ValuesIn(preset_names()),
                         [](const auto& test) { return test.param; });

TEST(BucketedMetricsOf, no_step_yet_and_of_a_loaded_state_are_zeros) {
  run_world("threads", 2, [](Communicator& comm) {
    BucketedReducer bucketed(comm, kTensors, preset_options("circulant", k), kSize);
    expect_nothing_happened(bucketed.metrics());
    bucketed.step(gradient_of(comm, 0));
    bucketed.load(bucketed.save());
    expect_nothing_happened(bucketed.metrics());
    EXPECT_EQ(bucketed.metrics().messages, 0u);
  });
}

TEST(BucketedMetricsOf, a_flush_are_those_of_a_dense_step) {
  run_world("threads", 3, [](Communicator& comm) {
    BucketedReducer bucketed(comm, kTensors, preset_options("circulant", k), kSize);
    bucketed.step(gradient_of(comm, 0));
    bucketed.flush();
    const StepMetrics metrics = bucketed.metrics();
    EXPECT_TRUE(metrics.is_dense);
    EXPECT_EQ(metrics.step, 1u);
    EXPECT_EQ(metrics.k, kValues);
    EXPECT_EQ(metrics.gathered, kValues);
    EXPECT_EQ(metrics.selected, 0u);
  });
}

// The last bucket exchanged holds index 20: those before it are taken back, their messages remain.
TEST(BucketedMetricsOf, a_skipped_step_say_so_and_count_all_messages) {
  run_world("threads", 3, [](Communicator& comm) {
    CountingCommunicator counting(comm);
    ReducerOptions options = preset_options("circulant", k);
    options.nan_policy = NanPolicy::skip;
    BucketedReducer bucketed(counting, kTensors, options, kSize);
    auto gradient = gradient_of(comm, 0);
    bucketed.step(gradient);
    counting.reset();
    if (comm.rank() == 1) gradient[20] = std::numeric_limits<float>::quiet_NaN();
    bucketed.step(gradient);
    const StepMetrics metrics = bucketed.metrics();
    expect_nothing_happened(metrics);
    EXPECT_TRUE(metrics.skipped);
    EXPECT_EQ(metrics.step, 1u);
    EXPECT_EQ(metrics.messages, counting.traffic().messages_sent);
    EXPECT_EQ(metrics.wire_bytes, counting.traffic().bytes_sent);
  });
}

TEST(BucketedMetricsOf, a_refused_step_are_zeros) {
  run_world("threads", 3, [](Communicator& comm) {
    BucketedReducer bucketed(comm, kTensors, preset_options("circulant", k), kSize);
    auto gradient = gradient_of(comm, 0);
    bucketed.step(gradient);
    gradient[150] = std::numeric_limits<float>::infinity();
    EXPECT_THROW(bucketed.step(gradient), UsageError);
    expect_nothing_happened(bucketed.metrics());
    EXPECT_EQ(bucketed.metrics().messages, 0u);
    EXPECT_FALSE(bucketed.metrics().skipped);
  });
}

TEST(BucketedMetricsOf, a_step_in_flight_are_refused) {
  run_world("threads", 2, [](Communicator& comm) {
    BucketedReducer bucketed(comm, kTensors, preset_options("circulant", k), kSize);
    bucketed.begin(Gradient{});
    EXPECT_THROW(bucketed.metrics(), UsageError);
    for (std::size_t t = 0; t < kTensors.size(); ++t) bucketed.ready(t);
    bucketed.wait();
  });
}

}  // namespace
}  // namespace oktopk::bucketed_reducer_metrics_test
