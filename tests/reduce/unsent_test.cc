// SPDX-License-Identifier: Apache-2.0
// Unsent mass moves between Reducers of different layouts, and nothing of it is lost: gradients
// brought before and after the move are applied in full.
#include <gtest/gtest.h>

#include <limits>

#include "oktopk/reduce/density.h"
#include "oktopk/reduce/reducer_state.h"
#include "oktopk/reduce/unsent.h"
#include "tests/support/message.h"
#include "tests/support/training.h"

namespace oktopk::unsent_test {
namespace {

constexpr Index kLarge = 700;
constexpr Index kSmall = 300;
constexpr Index kBoth = kLarge + kSmall;

std::vector<float> take(Reducer& reducer) {
  std::vector<float> out(reducer.n(), -1.0F);
  reducer.take_unsent(out);
  return out;
}

// The small one's values first.
template <class T>
std::vector<T> in_new_order(const std::vector<T>& large, const std::vector<T>& small) {
  std::vector<T> both = small;
  both.insert(both.end(), large.begin(), large.end());
  return both;
}

// Balance keeps what all ranks brought to a Reducer, less what it applied.
class Balance {
 public:
  explicit Balance(Index n) : owed(n, 0.0) {}
  void step(Reducer& reducer, std::uint64_t number) {
    const auto gradient = gradient_of(reducer, number);
    owed = plus(owed, sum_over_ranks(reducer.comm(), gradient));
    reducer.step(gradient);
    owed = plus(owed, sum_applied(reducer), -1);
  }
  Dense owed;
};

class ReducerUnsent : public testing::TestWithParam<TestedMethod> {};

// Dyadic gradients: every sum is exact.
TEST_P(ReducerUnsent, move_from_two_to_one_in_another_order_loses_nothing) {
  run_world("threads", 3, [](Communicator& comm) {
    Reducer large(comm, kLarge, GetParam().options(20));
    Reducer small(comm, kSmall, GetParam().options(9));
    Balance of_large(kLarge), of_small(kSmall), of_both(kBoth);
    for (std::uint64_t step = 0; step < 7; ++step) {
      of_large.step(large, step);
      of_small.step(small, step + 100);
    }
    Reducer both(comm, kBoth, GetParam().options(31));
    both.give_unsent(in_new_order(take(large), take(small)));
    of_both.owed = in_new_order(of_large.owed, of_small.owed);
    EXPECT_EQ(sum_unsent(both), of_both.owed);
    EXPECT_EQ(large.unsent_norm(), 0);
    EXPECT_EQ(small.unsent_norm(), 0);
    for (std::uint64_t step = 7; step < 12; ++step) of_both.step(both, step);
    both.flush();
    EXPECT_EQ(plus(of_both.owed, sum_applied(both), -1), Dense(kBoth, 0.0));
  });
}

TEST_P(ReducerUnsent, taken_twice_gives_zeros_and_steps_go_on) {
  run_world("threads", 3, [](Communicator& comm) {
    Reducer reducer(comm, kSmall, GetParam().options(9));
    for (std::uint64_t step = 0; step < 5; ++step) reducer.step(gradient_of(reducer, step));
    take(reducer);
    EXPECT_EQ(take(reducer), std::vector<float>(kSmall, 0.0F));
    Balance balance(kSmall);
    for (std::uint64_t step = 5; step < 9; ++step) balance.step(reducer, step);
    EXPECT_EQ(sum_unsent(reducer), balance.owed);
    EXPECT_EQ(reducer.steps(), 9u);
  });
}

INSTANTIATE_TEST_SUITE_P(Methods, ReducerUnsent, testing::ValuesIn(all_methods()),
                         [](const auto& tested) { return tested.param.name(); });

const TestedMethod kCirculant{"circulant", ResidualKind::owner_memory};

TEST(ReducerUnsents, give_adds_to_what_is_there) {
  run_world("threads", 1, [](Communicator& comm) {
    Reducer reducer(comm, 3, kCirculant.options(1));
    reducer.give_unsent(std::vector<float>{1, -2, 0});
    reducer.give_unsent(std::vector<float>{0.5F, 1, 4});
    EXPECT_EQ(take(reducer), (std::vector<float>{1.5F, -1, 4}));
  });
}

TEST(ReducerUnsents, unfit_values_are_refused_and_change_nothing) {
  run_world("threads", 1, [](Communicator& comm) {
    Reducer reducer(comm, 3, kCirculant.options(1));
    const float most = std::numeric_limits<float>::max();
    reducer.give_unsent(std::vector<float>{1, most, 3});
    const Bytes before = reducer.save();
    const auto refusal = [&](std::vector<float> values) { return message_of([&] { reducer.give_unsent(values); }); };
    EXPECT_EQ(refusal({1, 2}), "give_unsent: 2 values, but n = 3");
    EXPECT_NE(refusal({1, 2, std::numeric_limits<float>::quiet_NaN()}).find("value 2 is nan"), std::string::npos);
    EXPECT_NE(refusal({std::numeric_limits<float>::infinity(), 2, 3}).find("value 0 is inf"), std::string::npos);
    EXPECT_NE(refusal({1, most, 3}).find("value 1"), std::string::npos);
    std::vector<float> room(4);
    EXPECT_EQ(message_of([&] { reducer.take_unsent(room); }), "take_unsent: 4 values, but n = 3");
    EXPECT_EQ(reducer.save(), before);
  });
}

ReducerOptions in_stages() {
  ReducerOptions options = kCirculant.options(0);
  options.density = 0.01;
  options.warmup = {{.steps = 2, .density = 1}, {.steps = 4, .density = 0.25}};
  return options;
}

// The metrics say which stage a step belongs to.
TEST(ReducerUnsents, a_new_layout_begins_in_the_stage_of_the_old_one) {
  run_world("threads", 3, [](Communicator& comm) {
    Reducer large(comm, kLarge, in_stages());
    for (std::uint64_t step = 0; step < 4; ++step) large.step(gradient_of(large, step));
    Reducer small(comm, kSmall, in_stages());
    state_of(small).density.begin_at(state_of(large).density.pace());
    EXPECT_EQ(small.steps(), 4u);
    std::vector<std::size_t> k;
    for (std::uint64_t step = 4; step < 8; ++step) {
      small.step(gradient_of(small, step));
      k.push_back(small.metrics().k);
    }
    EXPECT_EQ(k, (std::vector<std::size_t>{75, 75, 3, 3}));
    EXPECT_EQ(small.metrics().step, 8u);
  });
}

TEST(ReducerUnsents, a_new_layout_begins_at_the_adaptive_density_of_the_old_one) {
  run_world("threads", 3, [](Communicator& comm) {
    ReducerOptions options = kCirculant.options(0);
    options.density = 0.01;
    options.adaptive = {.target_share = 0.9, .budget = 0.05, .interval = 2};
    Reducer large(comm, kLarge, options);
    for (std::uint64_t step = 0; step < 9; ++step) large.step(gradient_of(large, step));
    ASSERT_GT(state_of(large).density.adaptive().k(), large.k());
    Reducer same(comm, kLarge, options), small(comm, kSmall, options);
    state_of(same).density.begin_at(state_of(large).density.pace());
    state_of(small).density.begin_at(state_of(large).density.pace());
    EXPECT_EQ(state_of(same).density.adaptive().words(), state_of(large).density.adaptive().words());
    EXPECT_EQ(state_of(small).density.adaptive().steps(), 9u);
    EXPECT_NEAR(static_cast<double>(state_of(small).density.adaptive().k()) / kSmall,
                static_cast<double>(state_of(large).density.adaptive().k()) / kLarge, 2.0 / kSmall);
    EXPECT_LE(static_cast<double>(state_of(small).density.adaptive().spent()), 0.05 * kSmall * 9);
  });
}

TEST(ReducerUnsents, an_unfit_pace_is_refused) {
  run_world("threads", 1, [](Communicator& comm) {
    Reducer reducer(comm, kSmall, in_stages());
    const auto refusal = [&](DensityPlan::Pace pace) {
      return message_of([&] { state_of(reducer).density.begin_at(pace); });
    };
    EXPECT_NE(refusal({.density = 2}).find("density = 2"), std::string::npos);
    EXPECT_NE(refusal({.adaptive_steps = 3, .spent = 4}).find("4 entries"), std::string::npos);
    EXPECT_EQ(reducer.steps(), 0u);
    reducer.step(gradient_of(reducer, 0));
    EXPECT_EQ(refusal({}), "begin_at: 1 steps were made, but it is for a new reducer");
  });
}

TEST(ReducerUnsents, after_a_failed_step_nothing_can_be_moved) {
  run_world("threads", 1, [](Communicator& comm) {
    ReducerOptions options = kCirculant.options(1);
    Reducer reducer(comm, 2, options);
    const float most = std::numeric_limits<float>::max();
    reducer.give_unsent(std::vector<float>{most, most});
    EXPECT_THROW(reducer.step(std::vector<float>{most, most}), UsageError);
    std::vector<float> room(2, 7.0F);
    EXPECT_THROW(reducer.take_unsent(room), CommError);
    EXPECT_EQ(room, (std::vector<float>{7, 7}));
    EXPECT_THROW(reducer.give_unsent(room), CommError);
  });
}

}  // namespace
}  // namespace oktopk::unsent_test
