// SPDX-License-Identifier: Apache-2.0
// A Reducer whose density follows a target: the ranks agree on k, the budget holds at every step,
// and all laws of a step hold as before. Inputs are dyadic where mass is compared to the last bit.
#include <gtest/gtest.h>

#include <cmath>

#include "oktopk/reduce/reducer_state.h"
#include "oktopk/laws/laws.h"
#include "tests/support/message.h"
#include "tests/support/training.h"

namespace oktopk::reducer_adaptive_test {
namespace {

constexpr Index n = 400;
constexpr std::size_t k = 20;

ReducerOptions adaptive(ReducerOptions options, double share = 0.6, double budget = 0) {
  options.adaptive = {.target_share = share, .budget = budget, .interval = 3};
  return options;
}
ReducerOptions circulant(double share = 0.6, double budget = 0) {
  return adaptive(preset_options("circulant", k), share, budget);
}

// The k of the last step, which must be the same on all ranks.
std::size_t common_k(Reducer& reducer) {
  const std::size_t mine = reducer.metrics().k;
  const Dense last(1, static_cast<double>(mine));
  for (const Dense& theirs : gather_dense(reducer.comm(), last)) EXPECT_EQ(theirs, last);
  return mine;
}

void checked_step(Reducer& reducer, const std::vector<float>& gradient) {
  Communicator& comm = reducer.comm();
  const Dense before = sum_unsent(reducer);
  const Update update = reducer.step(gradient);
  for (const Dense& theirs : gather_dense(comm, spread(update, n))) ASSERT_EQ(theirs, spread(update, n));
  ASSERT_EQ(plus(sum_over_ranks(comm, gradient), before), plus(sum_applied(reducer), sum_unsent(reducer)));
}

class ReducerAdaptive : public testing::TestWithParam<TestedMethod> {};

TEST_P(ReducerAdaptive, ranks_agree_on_k_and_on_the_update_and_no_mass_is_lost) {
  for (const int P : {1, 3, 4})
    for (const double share : {0.05, 0.9})
      run_world("threads", P, [&](Communicator& comm) {
        Reducer reducer(comm, n, adaptive(GetParam().options(k), share));
        for (std::uint64_t step = 0; step < 30; ++step) {
          checked_step(reducer, gradient_of(reducer, step));
          common_k(reducer);
        }
        EXPECT_EQ(state_of(reducer).density.adaptive().k() > k, share > 0.5);
        EXPECT_NE(state_of(reducer).density.adaptive().k(), k);
      });
}

TEST_P(ReducerAdaptive, resumed_run_is_the_uninterrupted_one_bit_by_bit) {
  for (const int P : {1, 3})
    run_world("threads", P, [&](Communicator& comm) {
      const ReducerOptions options = adaptive(GetParam().options(k), 0.9, 0.1);
      Reducer whole(comm, n, options);
      for (std::uint64_t step = 0; step < 10; ++step) {
        Reducer resumed(comm, n, options);
        resumed.load(whole.save());
        const auto gradient = gradient_of(whole, step, Input::gaussian);
        const std::uint64_t bits = bits_of(whole.step(gradient));
        ASSERT_EQ(bits_of(resumed.step(gradient)), bits) << "step " << step;
        ASSERT_EQ(resumed.save(), whole.save());
      }
    });
}

std::vector<TestedMethod> sparse_methods() {
  std::vector<TestedMethod> methods = all_methods();
  std::erase_if(methods, [](const TestedMethod& m) { return m.preset == "dense"; });
  return methods;
}
INSTANTIATE_TEST_SUITE_P(Methods, ReducerAdaptive, testing::ValuesIn(sparse_methods()),
                         [](const auto& method) { return method.param.name(); });

TEST(ReducerAdapts, going_back_repeats_the_steps_bitwise) {
  run_world("threads", 3, [](Communicator& comm) {
    Reducer reducer(comm, n, circulant(0.9, 0.08));
    const auto run = [&](std::uint64_t from, std::uint64_t to) {
      std::uint64_t bits = 0;
      for (std::uint64_t step = from; step < to; ++step)
        bits = fold(bits, reducer.step(gradient_of(reducer, step, Input::gaussian)));
      return bits;
    };
    run(0, 4);
    ReducerSnapshot snapshot;
    state_of(reducer).copy_to(snapshot);
    const Bytes before = reducer.save();
    const std::uint64_t once = run(4, 12);
    state_of(reducer).go_back(snapshot);
    EXPECT_EQ(reducer.save(), before);
    EXPECT_EQ(run(4, 12), once);
  });
}

TEST(ReducerAdapts, budget_is_never_exceeded) {
  for (const double budget : {0.05, 0.0333})
    run_world("threads", 3, [&](Communicator& comm) {
      Reducer reducer(comm, n, circulant(0.95, budget));
      double spent = 0;
      for (std::uint64_t step = 0; step < 40; ++step) {
        reducer.step(gradient_of(reducer, step, Input::gaussian));
        spent += static_cast<double>(common_k(reducer));
        ASSERT_LE(spent, budget * n * static_cast<double>(step + 1));
      }
      EXPECT_GT(spent, 0.99 * budget * n * 40 - 1);
      EXPECT_EQ(static_cast<double>(state_of(reducer).density.adaptive().spent()), spent);
    });
}

TEST(ReducerAdapts, share_is_the_mean_over_the_ranks_of_what_they_sent) {
  for (const int P : {1, 3})
    run_world("threads", P, [&](Communicator& comm) {
      Reducer reducer(comm, n, circulant());
      for (std::uint64_t step = 0; step < 9; ++step) {
        const auto gradient = gradient_of(reducer, step, Input::gaussian);
        Dense acc(state_of(reducer).unsent.values().begin(), state_of(reducer).unsent.values().end());
        acc = plus(acc, Dense(gradient.begin(), gradient.end()));
        reducer.step(gradient);
        double sent = 0;
        double all = 0;
        for (const float x : reducer.sent().val) sent += double{x} * x;
        for (const double x : acc) all += x * x;
        const double mean = add_up(gather_dense(comm, Dense{sent / all}))[0] / P;
        EXPECT_NEAR(reducer.metrics().share, step % 3 == 2 ? mean : 0, 1e-5) << step;
      }
    });
}

TEST(ReducerAdapts, zero_gradients_change_nothing_and_scales_do_not_matter) {
  run_world("threads", 4, [](Communicator& comm) {
    Reducer reducer(comm, n, circulant());
    const std::vector<float> zeros(n, 0.0F);
    for (int step = 0; step < 7; ++step) reducer.step(zeros);
    EXPECT_EQ(state_of(reducer).density.adaptive().k(), k);
    for (std::uint64_t step = 0; step < 30; ++step) {
      const float scale = step % 10 < 5 ? 0x1p60F : 0x1p-60F;
      reducer.step(comm.rank() == 1 ? zeros : gradient_of(reducer, step), scale);
      EXPECT_GE(common_k(reducer), k / 10);
      EXPECT_LE(common_k(reducer), k * 10);
    }
  });
}

TEST(ReducerAdapts, k_begins_after_the_warmup_and_skipped_steps_do_not_count) {
  run_world("threads", 3, [](Communicator& comm) {
    ReducerOptions options = circulant(0.95);
    options.warmup = {{2, 1}, {4, 0.25}};
    options.nan_policy = NanPolicy::skip;
    Reducer reducer(comm, n, options);
    for (std::uint64_t step = 0; step < 6; ++step) reducer.step(gradient_of(reducer, step));
    EXPECT_EQ(state_of(reducer).density.adaptive().steps(), 0u);
    EXPECT_EQ(state_of(reducer).density.adaptive().k(), k);
    const std::vector<float> bad(n, std::nanf(""));
    EXPECT_TRUE(reducer.step(comm.rank() == 2 ? bad : gradient_of(reducer, 6)).skipped);
    EXPECT_EQ(state_of(reducer).density.adaptive().steps(), 0u);
    for (std::uint64_t step = 6; step < 9; ++step) reducer.step(gradient_of(reducer, step));
    EXPECT_EQ(state_of(reducer).density.adaptive().steps(), 3u);
    EXPECT_GT(state_of(reducer).density.adaptive().k(), k);
    reducer.flush();
    EXPECT_EQ(state_of(reducer).density.adaptive().steps(), 3u);
  });
}

// The last one goes on with other options.
TEST(ReducerAdapts, fewer_ranks_and_other_options_go_on_from_the_same_k) {
  std::vector<Bytes> states(4);
  std::size_t next = 0;
  std::uint64_t spent = 0;
  run_world("threads", 4, [&](Communicator& comm) {
    Reducer reducer(comm, n, circulant(0.95));
    for (std::uint64_t step = 0; step < 8; ++step) reducer.step(gradient_of(reducer, step));
    states[static_cast<std::size_t>(comm.rank())] = reducer.save();
    barrier(comm);
    if (comm.rank() != 0) return;
    next = state_of(reducer).density.adaptive().k();
    spent = state_of(reducer).density.adaptive().spent();
  });
  ASSERT_GT(next, k);
  run_world("threads", 3, [&](Communicator& comm) {
    Reducer reducer(comm, n, circulant(0.95));
    reducer.load_all(states);
    EXPECT_EQ(state_of(reducer).density.adaptive().k(), next);
    EXPECT_EQ(state_of(reducer).density.adaptive().spent(), spent);
    Reducer fixed(comm, n, preset_options("circulant", k));
    fixed.load_all(states);
    fixed.step(gradient_of(fixed, 8));
    EXPECT_EQ(common_k(fixed), k);
    Reducer thrifty(comm, n, circulant(0.95, 0.02));
    thrifty.load_all(states);
    for (std::uint64_t step = 8; step < 20; ++step) thrifty.step(gradient_of(thrifty, step));
    EXPECT_EQ(state_of(thrifty).density.adaptive().k(), 8u);
  });
}

TEST(ReducerAdapts, load_of_different_densities_is_refused_by_all) {
  run_world("threads", 3, [](Communicator& comm) {
    const ReducerOptions options = circulant(0.5);
    Reducer one(comm, n, options);
    Reducer other(comm, n, options);
    for (std::uint64_t step = 0; step < 4; ++step) {
      one.step(gradient_of(one, step));
      other.step(std::vector<float>(n, 0.0F));
    }
    ASSERT_NE(state_of(one).density.adaptive().words(), state_of(other).density.adaptive().words());
    Reducer fresh(comm, n, options);
    const std::string message = message_of([&] { fresh.load((comm.rank() == 1 ? other : one).save()); });
    EXPECT_NE(message.find("different states"), std::string::npos) << message;
    EXPECT_EQ(state_of(fresh).density.adaptive().steps(), 0u);
    barrier(comm);
  });
}

TEST(ReducerAdapts, options_that_would_be_ignored_or_differ_are_refused) {
  run_world("threads", 2, [](Communicator& comm) {
    const auto refusal = [&](const ReducerOptions& options) {
      return message_of([&] { const Reducer reducer(comm, n, options); });
    };
    EXPECT_NE(refusal(adaptive(preset_options("dense", k))).find("preset dense"), std::string::npos);
    ReducerOptions budget = preset_options("circulant", k);
    budget.adaptive.budget = 0.1;
    EXPECT_NE(refusal(budget).find("without a target share"), std::string::npos);
    Reducer differs(comm, n, circulant(comm.rank() == 0 ? 0.5 : 0.25));
    EXPECT_THROW(differs.step(gradient_of(differs, 0)), UsageError);
    barrier(comm);
  });
}

// Every step of the trial looks, the worst case.
TEST(ReducerAdapts, laws_hold) {
  for (const int P : {3, 4})
    for (const int group : {1, 2})
      run_world("threads", P, [&](Communicator& comm) {
        Trial trial{.options = preset_options("circulant", k), .group = group, .n = n, .steps = 6};
        trial.options.adaptive = {.target_share = 0.5, .least = 0.05, .most = 0.05, .interval = 1};
        for (const Finding& f : check_steps(comm, trial)) EXPECT_TRUE(f.holds) << f.detail;
        trial.options.adaptive = {.target_share = 0.9, .interval = 1};
        const Finding restore = check_restore(comm, trial);
        EXPECT_TRUE(restore.holds) << restore.detail;
        const Finding calm = check_calm(comm, trial);
        EXPECT_TRUE(calm.holds) << calm.detail;
      });
}

TEST(ReducerAdapts, auto_keeps_k_over_a_change_of_the_exchange) {
  run_world("threads", 3, [](Communicator& comm) {
    ReducerOptions options = adaptive({.density = 0.05}, 0.95);
    options.profile = Profile{};
    options.choice.presets = {"circulant", "topka"};
    Reducer reducer(comm, n, options);
    for (std::uint64_t step = 0; step < 20; ++step) {
      checked_step(reducer, gradient_of(reducer, step));
      common_k(reducer);
    }
    EXPECT_GT(state_of(reducer).density.adaptive().k(), k);
  });
}

}  // namespace
}  // namespace oktopk::reducer_adaptive_test
