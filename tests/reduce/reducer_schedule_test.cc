// SPDX-License-Identifier: Apache-2.0
// A Reducer beside plain steps: warm-up, a k that changes, decay, flush. Inputs are
// dyadic, so that mass is compared to the last bit.
#include <gtest/gtest.h>

#include "oktopk/reduce/reducer_options.h"
#include "tests/support/training.h"

namespace oktopk::reducer_schedule_test {
namespace {

constexpr Index n = 400;
constexpr std::size_t k = 20;

// One step by the rules: the ranks agree, and all mass is accounted for when what was unsent before
// counts `decay`.
void checked_step(Reducer& reducer, std::uint64_t step, double decay = 1) {
  Communicator& comm = reducer.comm();
  const auto gradient = gradient_of(reducer, step);
  const Dense before = sum_unsent(reducer);
  const Update update = reducer.step(gradient);
  for (const Dense& theirs : gather_dense(comm, spread(update, n)))
    ASSERT_EQ(theirs, spread(update, n)) << "step " << step;
  const Dense applied = sum_applied(reducer);
  update.for_each(
      [&](Index i, float mean) { ASSERT_EQ(mean, static_cast<float>(applied[i]) / static_cast<float>(comm.size())); });
  ASSERT_EQ(plus(sum_over_ranks(comm, gradient), before, decay), plus(applied, sum_unsent(reducer))) << "step " << step;
}

TEST(Recipe, begins_with_nearly_all_values_and_keeps_agreement_and_mass) {
  EXPECT_THROW(recipe(0), UsageError);
  EXPECT_EQ(recipe(1).warmup.front().steps, 1u);
  EXPECT_EQ(recipe(20'000).warmup.front().steps, 2'000u);
  for (const int P : {1, 3, 4})
    run_world("threads", P, [](Communicator& comm) {
      Reducer reducer(comm, n, recipe(20));
      for (std::uint64_t step = 0; step < 8; ++step) {
        checked_step(reducer, step);
        const bool is_start = step < 2;
        EXPECT_EQ(reducer.sent().size() > n / 2, is_start) << "step " << step << ": " << reducer.sent().size();
      }
    });
}

class ReducerSchedule : public testing::TestWithParam<TestedMethod> {};

TEST_P(ReducerSchedule, warmup_steps_are_dense_and_leave_nothing) {
  if (GetParam().value == ValueCoding::bf16)
    GTEST_SKIP() << "every step of dense in bf16 is one, and leaves rounding errors";
  for (const int P : {1, 3})
    run_world("threads", P, [&](Communicator& comm) {
      ReducerOptions options = GetParam().options(k);
      options.warmup = dense_warmup(3);
      Reducer reducer(comm, n, only_used(options));
      Reducer fresh(comm, n, GetParam().options(k));
      for (std::uint64_t step = 0; step < 3; ++step) {
        const auto gradient = gradient_of(reducer, step);
        const Update update = reducer.step(gradient);
        ASSERT_EQ(update.dense.size(), n);
        ASSERT_TRUE(reducer.sent().empty());
        ASSERT_EQ(sum_applied(reducer), sum_over_ranks(comm, gradient));
        ASSERT_EQ(reducer.unsent_norm(), 0);
      }
      EXPECT_EQ(reducer.steps(), 3u);
      for (std::uint64_t step = 3; step < 8; ++step) {
        const auto gradient = gradient_of(reducer, step);
        ASSERT_EQ(bits_of(reducer.step(gradient)), bits_of(fresh.step(gradient)));
      }
    });
}

TEST_P(ReducerSchedule, decay_fades_what_was_not_sent) {
  run_world("threads", 3, [&](Communicator& comm) {
    ReducerOptions options = GetParam().options(k);
    options.decay = 0.5F;
    options.warmup = {{2, 0.1}, {1, 1}};
    Reducer reducer(comm, n, only_used(options));
    for (std::uint64_t step = 0; step < 8; ++step)
      checked_step(reducer, step, step == 2 || state_of(reducer).allreduce->is_dense() ? 1 : 0.5);
  });
}

std::string method_name(const testing::TestParamInfo<TestedMethod>& info) { return info.param.name(); }

INSTANTIATE_TEST_SUITE_P(Methods, ReducerSchedule, testing::ValuesIn(all_methods()), method_name);

TEST(Reducer, dgc_warmup_selects_as_many_as_its_stages_say) {
  run_world("threads", 3, [](Communicator& comm) {
    ReducerOptions options = preset_options("topka", 4);
    options.warmup = dgc_warmup(6, 0.01);
    Reducer reducer(comm, n, only_used(options));
    for (const std::size_t expected : {100U, 100U, 25U, 25U, 6U, 6U, 4U, 4U}) {
      reducer.step(gradient_of(reducer, reducer.steps()));
      EXPECT_EQ(reducer.sent().size(), expected);
    }
    EXPECT_EQ(reducer.k(), 4u);
  });
}

// Otherwise the threshold of the last k would stay for tau' steps. Steered ones may be evaluated in
// other steps, too.
TEST(Reducer, step_with_another_k_makes_oktopk_evaluate_its_thresholds) {
  for (const ThresholdRule rule : {ThresholdRule::paper, ThresholdRule::steered})
    run_world("threads", 3, [&](Communicator& comm) {
      ReducerOptions options = preset_options("oktopk", 8);
      options.allreduce.thresholds = rule;
      options.warmup = {{3, 0.1}, {3, 0.05}};
      Reducer reducer(comm, n, only_used(options));
      for (std::uint64_t step = 0; step < 9; ++step) {
        reducer.step(gradient_of(reducer, step));
        const bool has_another_k = step % 3 == 0;
        if (has_another_k || rule == ThresholdRule::paper) {
          EXPECT_EQ(state_of(reducer).outcome.refreshed, has_another_k) << "step " << step;
        }
        if (!has_another_k) continue;
        const std::size_t now = step == 0 ? 40 : step == 3 ? 20 : 8;
        EXPECT_EQ(reducer.sent().size(), now);
        EXPECT_EQ(state_of(reducer).outcome.update.size(), now);
      }
    });
}

TEST(Reducer, warmup_uses_the_dense_schedule_that_was_chosen) {
  run_world("threads", 5, [](Communicator& comm) {
    const auto messages = [&](DenseSchedule schedule) {
      CountingCommunicator counting(comm);
      ReducerOptions options = preset_options("oktopk", 4);
      options.warmup = dense_warmup(2);
      options.allreduce.dense = schedule;
      options.nan_policy = NanPolicy::local;
      Reducer reducer(counting, n, options);
      reducer.step(gradient_of(reducer, 0));
      counting.reset();
      reducer.step(gradient_of(reducer, 1));
      return counting.traffic().messages_sent;
    };
    EXPECT_EQ(messages(DenseSchedule::rabenseifner), 6u);
    EXPECT_EQ(messages(DenseSchedule::ring), 8u);
  });
}

}  // namespace
}  // namespace oktopk::reducer_schedule_test
