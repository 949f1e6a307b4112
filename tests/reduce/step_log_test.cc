// SPDX-License-Identifier: Apache-2.0
// metrics() of a Reducer, and of all buckets together, agree with what was selected, sent and applied.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "oktopk/comm/decorators.h"
#include "oktopk/reduce/density.h"
#include "tests/reduce/conformance.h"

namespace oktopk::step_log_test {
namespace {

using namespace conformance;  // NOLINT(google-build-using-namespace)

double smallest(CooView v) {
  double least = std::numeric_limits<double>::infinity();
  for (const float x : v.val) least = std::min(least, double{std::fabs(x)});
  return least;
}

class Metrics : public testing::TestWithParam<Case> {
 protected:
  // A dense step and one of more entries, then k.
  ReducerOptions options_for(TraceRow trace = {}, NanPolicy policy = NanPolicy::error) const {
    ReducerOptions options = GetParam().method.options(k);
    options.warmup = {{1, 1}, {1, 0.25}};
    options.trace = trace;
    options.nan_policy = policy;
    return only_used(options);
  }
  Tested make(Communicator& comm, const ReducerOptions& options) const { return GetParam().kind.make(comm, options); }
};

TEST_P(Metrics, agree_with_what_was_sent_and_applied) {
  for (const bool traced : {false, true})
    run_world("threads", 3, [&](Communicator& comm) {
      Trace trace;
      CountingCommunicator counting(comm);
      const Tested tested = make(counting, options_for(traced ? TraceRow(&trace) : TraceRow{}));
      for (std::uint64_t step = 0; step < 6; ++step) {
        counting.reset();
        const Update update = tested->step(gradient_of(comm, step));
        const StepMetrics metrics = tested.metrics();
        EXPECT_EQ(metrics.step, step + 1);
        EXPECT_EQ(metrics.n, n);
        EXPECT_EQ(metrics.preset, GetParam().method.preset);
        EXPECT_EQ(metrics.messages, counting.traffic().messages_sent);
        EXPECT_EQ(metrics.wire_bytes, counting.traffic().bytes_sent);
        EXPECT_GT(metrics.wire_bytes, 0u);
        EXPECT_DOUBLE_EQ(metrics.dense_bytes, 2.0 * n * 2 / 3 * 4);
        EXPECT_EQ(metrics.is_dense, update.is_dense());
        EXPECT_EQ(metrics.is_dense, step == 0 || GetParam().method.preset == "dense");
        EXPECT_EQ(metrics.selected, tested->sent().size());
        EXPECT_EQ(metrics.gathered, update.size());
        EXPECT_FALSE(metrics.skipped);
        EXPECT_EQ(metrics.times.exchange, tested->times().exchange);
        EXPECT_EQ(metrics.members, 3);
        std::size_t aimed_at = 0;
        bool refreshed = false;
        for (const Part& part : tested.parts()) {
          const Reducer& reducer = part.reducer;
          aimed_at += metrics.is_dense ? reducer.n() : step == 1 ? entries_at(0.25, reducer.n()) : reducer.k();
          refreshed = refreshed || state_of(reducer).outcome.refreshed;
        }
        EXPECT_EQ(metrics.k, aimed_at);
        EXPECT_EQ(metrics.refreshed, refreshed);
        const bool has_thresholds = !metrics.is_dense && tested.parts().size() == 1;  // each bucket has its own
        EXPECT_EQ(metrics.local_threshold, has_thresholds ? smallest(tested->sent()) : 0);
        EXPECT_EQ(metrics.global_threshold,
                  has_thresholds ? smallest(state_of(tested.parts()[0].reducer).outcome.update) : 0);
      }
    });
}

void expect_nothing_happened(const StepMetrics& metrics) {
  EXPECT_EQ(metrics.n, n);
  EXPECT_EQ(metrics.k, 0u);
  EXPECT_EQ(metrics.selected, 0u);
  EXPECT_EQ(metrics.gathered, 0u);
  EXPECT_EQ(metrics.local_threshold, 0);
  EXPECT_EQ(metrics.global_threshold, 0);
  EXPECT_FALSE(metrics.is_dense);
  EXPECT_FALSE(metrics.refreshed);
}

TEST_P(Metrics, are_zeros_before_the_first_step_and_after_a_refusal_or_a_load) {
  run_world("threads", 3, [&](Communicator& comm) {
    const Tested tested = make(comm, options_for());
    const auto expect_zeros = [&] {
      expect_nothing_happened(tested.metrics());
      EXPECT_EQ(tested.metrics().messages, 0u);
      EXPECT_EQ(tested.metrics().idle, 0);
      EXPECT_FALSE(tested.metrics().skipped);
    };
    expect_zeros();
    for (std::uint64_t step = 0; step < 3; ++step) tested->step(gradient_of(comm, step));
    auto bad = gradient_of(comm, 3);
    bad[150] = std::numeric_limits<float>::infinity();
    EXPECT_THROW(tested->step(bad), UsageError);
    expect_zeros();
    tested->step(gradient_of(comm, 3));
    tested->load(tested->save());
    expect_zeros();
  });
}

// The last bucket exchanged holds index 20: those before it are taken back, their messages remain.
TEST_P(Metrics, of_a_skipped_step_say_so_and_count_all_messages) {
  run_world("threads", 3, [&](Communicator& comm) {
    CountingCommunicator counting(comm);
    const Tested tested = make(counting, options_for({}, NanPolicy::skip));
    auto gradient = gradient_of(comm, 0);
    tested->step(gradient);
    counting.reset();
    if (comm.rank() == 1) gradient[20] = std::numeric_limits<float>::quiet_NaN();
    tested->step(gradient);
    const StepMetrics metrics = tested.metrics();
    expect_nothing_happened(metrics);
    EXPECT_TRUE(metrics.skipped);
    EXPECT_EQ(metrics.step, 1u);
    EXPECT_EQ(metrics.messages, counting.traffic().messages_sent);
    EXPECT_EQ(metrics.wire_bytes, counting.traffic().bytes_sent);
    EXPECT_GT(metrics.messages, 0u);  // the notes
  });
}

TEST_P(Metrics, of_a_flush_are_those_of_a_dense_step) {
  run_world("threads", 3, [&](Communicator& comm) {
    const Tested tested = make(comm, options_for());
    tested->step(gradient_of(comm, 0));
    tested->flush();
    const StepMetrics metrics = tested.metrics();
    EXPECT_TRUE(metrics.is_dense);
    EXPECT_EQ(metrics.step, 1u);
    EXPECT_EQ(metrics.k, n);
    EXPECT_EQ(metrics.gathered, n);
    EXPECT_EQ(metrics.selected, 0u);
  });
}

INSTANTIATE_TEST_SUITE_P(Synchronisers, Metrics, testing::ValuesIn(cases([](const Kind& kind) {
                           return kind.name == "reducer" || kind.name == "buckets";
                         })),
                         case_name);

// No bound on times: only those that follow from each other.
TEST(MetricsOfWaits, are_parts_of_the_step) {
  for (const int P : {1, 3, 5})
    run_world("threads", P, [P](Communicator& comm) {
      Reducer reducer(comm, n, preset_options("circulant", k));
      for (std::uint64_t step = 0; step < 4; ++step) {
        const auto gradient = gradient_of(comm, step);
        const auto begin = std::chrono::steady_clock::now();
        reducer.step(gradient);
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
        const StepMetrics metrics = reducer.metrics();
        EXPECT_EQ(metrics.epoch, 0u);
        EXPECT_LE(metrics.idle, seconds.count());
        EXPECT_LE(metrics.longest_wait, metrics.idle * (1 + 1e-9));
        EXPECT_EQ(metrics.dense_bytes == 0, P == 1);
        if (P == 1) {
          EXPECT_EQ(metrics.waited_for, -1);
          EXPECT_EQ(metrics.longest_wait, 0);
          continue;
        }
        EXPECT_GT(metrics.longest_wait, 0);
        EXPECT_TRUE(metrics.waited_for >= 0 && metrics.waited_for < P && metrics.waited_for != comm.rank());
      }
    });
}

}  // namespace
}  // namespace oktopk::step_log_test
