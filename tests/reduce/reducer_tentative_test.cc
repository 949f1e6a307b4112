// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <memory>

#include "oktopk/base/error.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/reducer_state.h"
#include "tests/device/hidden_device.h"
#include "tests/support/faults.h"
#include "tests/support/message.h"
#include "tests/support/runs.h"
#include "tests/support/tentative.h"

namespace oktopk::reducer_tentative_test {
namespace {

constexpr Index n = 700;
constexpr std::size_t k = 20;

ReducerOptions options_of(const TestedMethod& method) { return staged_options(method, k); }

class ReducerTentative : public testing::TestWithParam<TestedMethod> {};

TEST_P(ReducerTentative, step_that_was_taken_back_twice_equals_a_plain_step_bit_by_bit) {
  for (const int P : {1, 2, 3, 5})
    for (const Input input : {Input::gaussian, Input::skewed})
      run_world("threads", P, [&](Communicator& comm) {
        Reducer plain(comm, n, options_of(GetParam()));
        Reducer tentative(comm, n, options_of(GetParam()));
        for (std::uint64_t step = 0; step < 80; ++step) {
          const auto gradient = gradient_of(plain, step, input);
          step_with_two_roll_backs(tentative, {gradient}, bits_of, bits_of(plain.step(gradient)));
          ASSERT_EQ(tentative.save(), plain.save()) << "step " << step << ", P = " << P;
          ASSERT_EQ(tentative.steps(), step + 1);
        }
      });
}

TEST_P(ReducerTentative, roll_back_leaves_the_accumulator_and_nothing_else) {
  run_world("threads", 3, [&](Communicator& comm) {
    Reducer reducer(comm, n, options_of(GetParam()));
    for (std::uint64_t step = 0; step < 12; ++step) {
      const auto gradient = gradient_of(reducer, step, Input::dyadic);
      const Bytes before = rest_of(reducer);
      std::vector<float> expected = accumulator_of(reducer);
      for (Index i = 0; i < n; ++i) expected[i] += gradient[i];
      const bool folds = state_of(reducer).density.is_dense();
      reducer.propose(gradient);
      reducer.roll_back();
      if (!folds) {
        ASSERT_EQ(rest_of(reducer), before) << "step " << step;
        ASSERT_EQ(accumulator_of(reducer), expected);
      }
      reducer.propose({});
      reducer.commit();
    }
  });
}

// A rank dies at each of its messages. The others roll back: their accumulators and all else are as if the step had
// only begun.
TEST_P(ReducerTentative, failure_at_any_message_can_be_taken_back) {
  const int P = 3;
  for (std::uint64_t at = 0; at < 40; ++at) {
    bool struck = false;
    run_world("threads", P, [&](Communicator& world) {
      const auto steady = world.split(0, world.rank());
      const auto doomed = world.split(0, world.rank());
      Reducer reducer(*steady, n, only_used(GetParam().options(k)));
      for (std::uint64_t step = 0; step < 5; ++step) reducer.step(gradient_of(reducer, step, Input::dyadic));
      FaultyCommunicator faulty(*doomed, {world.rank() == 1 ? FaultKind::die : FaultKind::none, at});
      Reducer moved(faulty, n, only_used(GetParam().options(k)));
      state_of(moved).read(reducer.save());
      const auto gradient = gradient_of(reducer, 5, Input::dyadic);
      const bool failed = fails_to_propose(moved, gradient);
      if (world.rank() == 1) struck = faulty.has_struck();
      moved.roll_back();
      SCOPED_TRACE(text_of("message ", at));
      expect_only_begun(moved, reducer, gradient, failed);
      barrier(world);
    });
    if (!struck) return;
  }
  FAIL() << "a step has fewer messages than this";
}

// All that is of length n goes through the device: a GPU could make these steps.
TEST_P(ReducerTentative, memory_of_another_device_comes_back) {
  run_world("threads", 3, [&](Communicator& comm) {
    ReducerOptions hidden = options_of(GetParam());
    hidden.device = std::make_shared<HiddenDevice>(/*is_strict=*/false);  // gradients lie in host memory
    Reducer plain(comm, n, options_of(GetParam()));
    Reducer tentative(comm, n, hidden);
    for (std::uint64_t step = 0; step < 8; ++step) {
      const auto gradient = gradient_of(plain, step, Input::skewed);
      const auto bits = bits_of(plain.step(gradient));
      tentative.propose(gradient);
      tentative.roll_back();
      ASSERT_EQ(bits_of(tentative.propose(gradient)), bits);
      tentative.commit();
    }
    EXPECT_EQ(tentative.save(), plain.save());
  });
}

INSTANTIATE_TEST_SUITE_P(Methods, ReducerTentative, testing::ValuesIn(all_methods()),
                         [](const auto& method) { return method.param.name(); });

TEST(ReducerTentativeCalls, calls_in_the_wrong_order_are_refused) {
  run_world("threads", 2, [](Communicator& comm) {
    Reducer reducer(comm, n, preset_options("circulant", k));
    const std::vector<float> gradient(n, 1.0F);
    EXPECT_THROW(reducer.commit(), UsageError);
    EXPECT_THROW(reducer.roll_back(), UsageError);
    reducer.propose(gradient);
    EXPECT_THROW(reducer.propose(gradient), UsageError);
    EXPECT_THROW(reducer.step(gradient), UsageError);
    EXPECT_THROW(reducer.flush(), UsageError);
    EXPECT_THROW(reducer.save(), UsageError);
    EXPECT_THROW(reducer.forget(), UsageError);
    reducer.commit();
    EXPECT_EQ(reducer.steps(), 1U);
    EXPECT_THROW(reducer.propose(std::vector<float>(n + 1)), UsageError);
    EXPECT_FALSE(reducer.is_open());
    reducer.step(gradient);
  });
}

TEST(ReducerTentativeCalls, moved_reducer_keeps_mass_and_place) {
  run_world("threads", 3, [](Communicator& comm) {
    const ReducerOptions options = preset_options("circulant", k);
    Reducer reducer(comm, n, options);
    for (std::uint64_t step = 0; step < 4; ++step) reducer.step(gradient_of(reducer, step, Input::dyadic));
    std::vector<float> unsent(n);
    Reducer copy(comm, n, options);
    copy.load(reducer.save());
    copy.take_unsent(unsent);
    const auto other = comm.split(0, comm.rank());
    const auto moved = reducer.moved_to(*other);
    EXPECT_EQ(moved->steps(), 4U);
    std::vector<float> kept(n);
    moved->take_unsent(kept);
    EXPECT_EQ(kept, unsent);
    EXPECT_EQ(reducer.unsent_norm(), 0);
  });
}

}  // namespace
}  // namespace oktopk::reducer_tentative_test
