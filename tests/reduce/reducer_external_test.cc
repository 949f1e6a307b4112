// SPDX-License-Identifier: Apache-2.0
// Dense steps that the caller makes himself: when they come, what they count for, and that nothing
// is lost between them and the Reducer's own steps.
#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/laws/inputs.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/reducer_state.h"
#include "oktopk/reduce/unsent.h"
#include "oktopk/tune/tuner.h"
#include "tests/support/message.h"
#include "tests/support/world.h"

namespace oktopk::reducer_external_test {
namespace {

constexpr Index n = 500;

ReducerOptions external_options(const std::string& preset) {
  ReducerOptions options;
  options.preset = preset;
  options.density = 0.05;
  options.choice.external_dense = true;
  return only_used(options);
}

std::vector<float> gradient_of(int rank, int step) {
  return make_input(Input::dyadic, n, rank, static_cast<std::uint64_t>(step), 1);
}

// The caller's sum over the ranks of his gradient and of what is unsent.
std::vector<float> external_sum(Reducer& reducer, std::vector<float> mine) {
  std::vector<float> unsent(n, 0.0F);
  if (state_of(reducer).unsent.may_exist()) reducer.take_unsent(unsent);
  for (Index i = 0; i < n; ++i) mine[i] += unsent[i];
  Workspace work;
  allreduce_small(reducer.comm(), std::span<float>(mine), Reduction::sum, work);
  return mine;
}

TEST(ReducerExternal, comes_in_the_warmup_and_with_preset_dense_only) {
  run_world("threads", 3, [](Communicator& comm) {
    ReducerOptions options = external_options("circulant");
    options.warmup = {{2, 1.0}, {1, 0.5}};
    Reducer reducer(comm, n, options);
    for (int step = 0; step < 5; ++step) {
      const bool is_external = reducer.prepare();
      EXPECT_EQ(is_external, step < 2);
      EXPECT_EQ(reducer.prepare(), is_external) << "asking twice changes nothing";
      if (!is_external) {
        reducer.step(gradient_of(comm.rank(), step));
        continue;
      }
      external_sum(reducer, gradient_of(comm.rank(), step));
      reducer.end_external({.seconds = 0.5, .bytes = 1'000'000});
      const StepMetrics metrics = reducer.metrics();
      EXPECT_TRUE(metrics.is_dense);
      EXPECT_EQ(metrics.gathered, n);
      EXPECT_EQ(metrics.k, n);
      EXPECT_GE(metrics.wire_bytes, 1'000'000U);
      EXPECT_GE(metrics.times.exchange, 0.5);
    }
    EXPECT_EQ(reducer.steps(), 5U);
    EXPECT_TRUE(Reducer(comm, n, external_options("dense")).prepare());
    ReducerOptions halves = external_options("dense");
    halves.allreduce.codec = {IndexCoding::coo32, ValueCoding::bf16};
    EXPECT_FALSE(Reducer(comm, n, halves).prepare()) << "the caller's dense is one of floats";
    options.choice.external_dense = false;
    EXPECT_FALSE(Reducer(comm, n, options).prepare());
  });
}

TEST(ReducerExternal, loses_nothing_between_sparse_and_dense_steps) {
  for (const int P : {2, 3, 5})
    run_world("threads", P, [](Communicator& comm) {
      Reducer reducer(comm, n, external_options("circulant"));
      std::vector<double> owed(n, 0.0);
      const auto apply = [&](const Update& update) {
        update.for_each([&](Index i, float mean) { owed[i] -= double{mean} * comm.size(); });
      };
      EXPECT_FALSE(state_of(reducer).unsent.may_exist());
      for (int step = 0; step < 6; ++step) {
        std::vector<float> given = gradient_of(comm.rank(), step);
        apply(reducer.step(given));
        Workspace work;
        allreduce_small(comm, std::span<float>(given), Reduction::sum, work);
        for (Index i = 0; i < n; ++i) owed[i] += given[i];
        EXPECT_TRUE(state_of(reducer).unsent.may_exist());
      }
      reducer.prepare_flush();
      const std::vector<float> rest = external_sum(reducer, std::vector<float>(n, 0.0F));
      reducer.end_external({.is_flush = true});
      for (Index i = 0; i < n; ++i) EXPECT_NEAR(owed[i], rest[i], 1e-4) << i;
      EXPECT_FALSE(state_of(reducer).unsent.may_exist());
      EXPECT_EQ(reducer.unsent_norm(), 0);
      EXPECT_EQ(reducer.steps(), 6U) << "a flush is no step";
    });
}

TEST(ReducerExternal, step_left_out_does_not_count) {
  run_world("threads", 2, [](Communicator& comm) {
    Reducer reducer(comm, n, external_options("dense"));
    ASSERT_TRUE(reducer.prepare());
    EXPECT_TRUE(reducer.end_external({.skipped = true}).skipped);
    EXPECT_TRUE(reducer.metrics().skipped);
    EXPECT_FALSE(reducer.metrics().is_dense);
    EXPECT_EQ(reducer.steps(), 0U);
    EXPECT_NE(message_of<UsageError>([&] { reducer.end_external({}); }).find("without prepare()"), std::string::npos);
    const std::vector<float> given(n, 1.0F);
    reducer.give_unsent(given);
    ASSERT_TRUE(reducer.prepare());
    EXPECT_NE(message_of<UsageError>([&] { reducer.end_external({}); }).find("take_unsent() was not called"),
              std::string::npos);
  });
}

TEST(ReducerExternal, failed_step_is_the_end) {
  run_world("threads", 1, [](Communicator& comm) {
    Reducer reducer(comm, n, external_options("dense"));
    ASSERT_TRUE(reducer.prepare());
    reducer.fail_external();
    EXPECT_NE(message_of<CommError>([&] { reducer.prepare(); }).find("failed half-way"), std::string::npos);
  });
}

TEST(ReducerExternal, auto_takes_the_callers_dense_where_its_price_is_the_least) {
  run_world("threads", 3, [](Communicator& comm) {
    ReducerOptions options = external_options("auto");
    Reducer cheap(comm, n, options);
    ASSERT_TRUE(state_of(cheap).is_calibration_due());
    EXPECT_TRUE(cheap.prepare(ExternalPrice{.latency = 1e-12, .per_byte = 0}));
    EXPECT_EQ(state_of(cheap).tuner->profile().external_dense->latency, 1e-12);
    EXPECT_FALSE(state_of(cheap).is_calibration_due());
    Reducer dear(comm, n, options);
    const double mine = comm.rank() == 2 ? 1000 : 1e-12;  // the dearest rank's counts
    EXPECT_FALSE(dear.prepare(ExternalPrice{.latency = mine, .per_byte = 0}));
    EXPECT_EQ(state_of(dear).tuner->profile().external_dense->latency, 1000);
    options.profile = Profile{.external_dense = ExternalPrice{.latency = 1e-6, .per_byte = 0}};
    Reducer hopeful(comm, n, options);
    int made = 0;  // steps that disappoint are reviewed as all others are
    for (; made < 100 && hopeful.prepare(); ++made) hopeful.end_external({.seconds = 10});
    EXPECT_EQ(made, 16);
  });
}

}  // namespace
}  // namespace oktopk::reducer_external_test
