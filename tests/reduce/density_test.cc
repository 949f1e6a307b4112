// SPDX-License-Identifier: Apache-2.0
// How many entries each step sends: schedules, the rule of the adaptive density, and Reducers that follow it.
#include "oktopk/reduce/density.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "oktopk/laws/laws.h"
#include "oktopk/reduce/bucketed_reducer.h"
#include "oktopk/reduce/node_reducer.h"
#include "oktopk/reduce/reducer_state.h"
#include "tests/support/message.h"
#include "tests/support/training.h"

namespace oktopk::density_test {
namespace {

std::uint64_t total_steps(const DensitySchedule& schedule) {
  std::uint64_t total = 0;
  for (const DensityStage& stage : schedule) total += stage.steps;
  return total;
}

TEST(DensitySchedule, dense_warmup_is_one_stage_or_none) {
  EXPECT_TRUE(dense_warmup(0).empty());
  const DensitySchedule schedule = dense_warmup(5);
  ASSERT_EQ(schedule.size(), 1u);
  for (std::uint64_t step = 0; step < 5; ++step) EXPECT_EQ(density_at(schedule, step), 1);
  for (std::uint64_t step = 5; step < 9; ++step) EXPECT_EQ(density_at(schedule, step), 0);
}

TEST(DensitySchedule, dgc_warmup_quarters_the_density_stage_by_stage) {
  const DensitySchedule schedule = dgc_warmup(40, 0.001);
  ASSERT_EQ(schedule.size(), 4u);
  double density = 0.25;
  for (const DensityStage& stage : schedule) {
    EXPECT_EQ(stage.steps, 10u);
    EXPECT_EQ(stage.density, density);
    EXPECT_GT(stage.density, 0.001);
    density /= 4;
  }
  EXPECT_EQ(density_at(schedule, 9), 0.25);
  EXPECT_EQ(density_at(schedule, 10), 0.0625);
  EXPECT_EQ(density_at(schedule, 39), 0.00390625);
  EXPECT_EQ(density_at(schedule, 40), 0);
}

TEST(DensitySchedule, dgc_warmup_lasts_as_long_as_asked_for) {
  for (const std::uint64_t steps : {0, 1, 2, 3, 5, 7, 100, 101})
    for (const double density : {0.25, 1.0, 0.2, 0.01, 0.001, 1e-6}) {
      const DensitySchedule schedule = dgc_warmup(steps, density);
      EXPECT_EQ(total_steps(schedule), density < 0.25 ? steps : 0) << density;
      for (std::size_t s = 0; s < schedule.size(); ++s) {
        EXPECT_GT(schedule[s].steps, 0u);
        const double before = s > 0 ? schedule[s - 1].density : 1;
        EXPECT_LT(schedule[s].density, before);
      }
    }
}

TEST(DensitySchedule, dgc_warmup_to_no_density_is_refused) {
  for (const double density : {0.0, -0.1, 1.1, std::numeric_limits<double>::quiet_NaN()}) {
    const std::string message = message_of([&] { dgc_warmup(10, density); });
    EXPECT_NE(message.find("density"), std::string::npos) << message;
  }
}

TEST(DensitySchedule, density_at_passes_over_empty_stages) {
  const DensitySchedule schedule = {{0, 1}, {2, 0.5}, {0, 0.3}, {1, 0.1}};
  EXPECT_EQ(density_at(schedule, 0), 0.5);
  EXPECT_EQ(density_at(schedule, 1), 0.5);
  EXPECT_EQ(density_at(schedule, 2), 0.1);
  EXPECT_EQ(density_at(schedule, 3), 0);
  EXPECT_EQ(density_at({}, 0), 0);
}

TEST(DensitySchedule, entries_at_rounds_and_is_at_least_one) {
  EXPECT_EQ(entries_at(0.01, 1049), 10u);
  EXPECT_EQ(entries_at(0.01, 1051), 11u);
  EXPECT_EQ(entries_at(1e-9, 5), 1u);
  EXPECT_EQ(entries_at(1, 7), 7u);
  EXPECT_EQ(entries_at(0.9999, 7), 7u);
  EXPECT_EQ(entries_at(0.5, 0), 0u);
  EXPECT_EQ(entries_at(1, 0xffffffffU), 0xffffffffU);
}

TEST(DensitySchedule, check_of_a_density_outside_0_to_1_names_it) {
  check_schedule({});
  check_schedule({{3, 1}, {0, 0.001}});
  for (const double density : {0.0, -0.5, 2.0, std::numeric_limits<double>::quiet_NaN()}) {
    const std::string message = message_of([&] { check_schedule({{1, 1}, {1, density}}); });
    EXPECT_NE(message.find("warm-up: density = "), std::string::npos) << message;
  }
}

constexpr Index n = 100'000;

SentShare share(double x) { return SentShare::of(x, 1); }

// One interval of steps, of which the last one saw `seen`.
void pass(AdaptiveDensity& density, double seen) {
  while (!density.is_due()) density.count();
  density.count();
  density.observe(share(seen));
}

// Its first n/k steps are over.
AdaptiveDensity settled(const AdaptiveDensityOptions& options) {
  AdaptiveDensity density(options, n, 1000);
  for (int i = 0; i < 4; ++i) pass(density, options.target_share);
  return density;
}

TEST(AdaptiveDensity, is_off_without_a_target) {
  EXPECT_FALSE(AdaptiveDensity().is_on());
  EXPECT_FALSE(AdaptiveDensity({}, n, 10).is_on());
  EXPECT_FALSE(AdaptiveDensity({.target_share = 0.1}, 0, 0).is_on());
  EXPECT_EQ(describe(AdaptiveDensityOptions{}), "");
}

TEST(AdaptiveDensity, unfit_options_are_refused_with_value_and_rule) {
  const auto refusal = [](const AdaptiveDensityOptions& options) { return message_of([&] { describe(options); }); };
  EXPECT_NE(refusal({.target_share = 1}).find("target share = 1, but it must be in (0, 1)"), std::string::npos);
  EXPECT_NE(refusal({.target_share = -0.5}).find("-0.5"), std::string::npos);
  EXPECT_NE(refusal({.target_share = std::numeric_limits<double>::quiet_NaN()}), "");
  EXPECT_NE(refusal({.budget = 0.1}).find("without a target share"), std::string::npos);
  EXPECT_NE(refusal({.least = 0.1}).find("without a target share"), std::string::npos);
  EXPECT_NE(refusal({.target_share = 0.1, .most = 2}).find("most = 2"), std::string::npos);
  EXPECT_NE(refusal({.target_share = 0.1, .budget = -1}).find("budget = -1"), std::string::npos);
  EXPECT_NE(refusal({.target_share = 0.1, .least = 0.2, .most = 0.1}).find("above most = 0.1"), std::string::npos);
  EXPECT_NE(refusal({.target_share = 0.1, .least = 0.2, .budget = 0.1}).find("budget = 0.1"), std::string::npos);
  EXPECT_NE(refusal({.target_share = 0.1, .interval = 0}).find("interval = 0"), std::string::npos);
  EXPECT_EQ(describe(AdaptiveDensityOptions{.target_share = 0.5}).find(kAdaptiveMark), 0u);
}

TEST(AdaptiveDensity, share_below_the_target_raises_k_and_above_it_lowers_it) {
  AdaptiveDensity density = settled({.target_share = 0.1});
  EXPECT_EQ(density.k(), 1000u);
  pass(density, 0.1);
  EXPECT_NEAR(static_cast<double>(density.k()), 1000, 1);
  pass(density, 0.08);
  EXPECT_NEAR(static_cast<double>(density.k()), 1118, 1);  // times (10/8)^(1/2)
  pass(density, 0.001);
  EXPECT_NEAR(static_cast<double>(density.k()), 1398, 1);  // at most a quarter more
  pass(density, 0.9);
  EXPECT_NEAR(static_cast<double>(density.k()), 1118, 1);
}

TEST(AdaptiveDensity, k_only_grows_while_the_residual_fills) {
  AdaptiveDensity density({.target_share = 0.1}, n, 1000);
  for (int i = 0; i < 3; ++i) pass(density, 0.9);
  EXPECT_EQ(density.k(), 1000u);
  pass(density, 0.9);  // step 128 of n/k = 100
  EXPECT_EQ(density.k(), 800u);
  AdaptiveDensity low({.target_share = 0.1}, n, 1000);
  pass(low, 0.01);
  EXPECT_EQ(low.k(), 1250u);
}

TEST(AdaptiveDensity, looks_once_per_interval) {
  AdaptiveDensity density({.target_share = 0.1, .interval = 5}, n, 1000);
  std::vector<std::uint64_t> looks;
  for (std::uint64_t step = 0; step < 12; ++step) {
    if (density.is_due()) looks.push_back(step);
    density.count();
  }
  EXPECT_EQ(looks, (std::vector<std::uint64_t>{4, 9}));
}

TEST(AdaptiveDensity, k_stays_within_the_limits) {
  AdaptiveDensity density({.target_share = 0.1, .least = 0.005, .most = 0.02}, n, 1000);
  for (int i = 0; i < 9; ++i) pass(density, 0.0);
  EXPECT_EQ(density.k(), 2000u);
  for (int i = 0; i < 12; ++i) pass(density, 1.0);
  EXPECT_EQ(density.k(), 500u);
  AdaptiveDensity wide({.target_share = 0.1}, n, 1000);
  EXPECT_EQ(wide.most(), 10'000u);
  for (int i = 0; i < 40; ++i) pass(wide, 1.0);
  EXPECT_EQ(wide.k(), 100u);
  EXPECT_EQ(AdaptiveDensity({.target_share = 0.1}, 50, 20).most(), 50u);
}

TEST(AdaptiveDensity, k_of_one_entry_grows) {
  AdaptiveDensity density({.target_share = 0.5}, 100, 1);
  for (int i = 0; i < 20; ++i) pass(density, 0.01);
  EXPECT_EQ(density.k(), 10u);
}

TEST(AdaptiveDensity, silence_changes_nothing) {
  AdaptiveDensity density({.target_share = 0.1}, n, 1000);
  for (int i = 0; i < 100; ++i) {
    density.count();
    density.observe({});
  }
  EXPECT_EQ(density.k(), 1000u);
}

TEST(AdaptiveDensity, budget_holds_at_every_step_and_can_be_used_up) {
  for (const double budget : {0.01, 0.00037, 0.000001}) {
    AdaptiveDensity density({.target_share = 0.1, .most = 0.1, .budget = budget, .interval = 4}, n, 5000);
    std::mt19937 random(1);
    const double bound = std::max(1.0, budget * n);
    for (int step = 1; step <= 4000; ++step) {
      const bool is_due = density.is_due();
      ASSERT_GE(density.k(), 1u);
      density.count();
      ASSERT_LE(static_cast<double>(density.spent()), bound * step) << budget;
      // First it wants less than it may have, then more.
      const double seen = static_cast<double>(random() % 1000) / 1000;
      if (is_due) density.observe(share(step < 2000 ? seen : seen / 100));
    }
    EXPECT_GT(static_cast<double>(density.spent()), 0.999 * bound * 4000 - 1) << budget;
  }
}

TEST(AdaptiveDensity, what_was_saved_may_be_spent_later) {
  AdaptiveDensity density({.target_share = 0.1, .budget = 0.01}, n, 1000);
  for (int i = 0; i < 13; ++i) pass(density, 0.9);
  EXPECT_LT(density.k(), 200u);
  for (int i = 0; i < 14; ++i) pass(density, 0.001);
  EXPECT_GT(density.k(), 2000u);
}

TEST(AdaptiveDensity, k_does_not_wait_at_a_height_that_the_budget_forbids) {
  AdaptiveDensity density({.target_share = 0.1, .budget = 0.01}, n, 1000);
  for (int i = 0; i < 50; ++i) pass(density, 0.0);
  pass(density, 0.9);
  EXPECT_LT(density.k(), 810u);
}

TEST(SentShare, is_free_of_scale_and_safe_without_mass) {
  EXPECT_EQ(SentShare::of(1e-90, 4e-90).mean(), 0.25);
  EXPECT_EQ(SentShare::of(1e80, 4e80).mean(), 0.25);
  EXPECT_EQ(SentShare::of(1 + 1e-12, 1).mean(), 1);
  EXPECT_EQ(SentShare::of(0, 0).ranks, 0u);
  EXPECT_EQ(SentShare{}.mean(), 0);
  EXPECT_EQ(SentShare::of(0, 1).ranks, 1u);
}

TEST(AdaptiveDensity, resume_goes_on_alike) {
  const AdaptiveDensityOptions options{.target_share = 0.1, .budget = 0.008};
  AdaptiveDensity one(options, n, 1000);
  for (const double seen : {0.3, 0.2, 0.01, 0.01}) pass(one, seen);
  one.count();
  AdaptiveDensity other(options, n, 1000);
  other.resume(one.words());
  for (const double seen : {0.01, 0.01, 0.3}) {
    EXPECT_EQ(other.words(), one.words());
    EXPECT_EQ(other.k(), one.k());
    pass(one, seen);
    pass(other, seen);
  }
}

TEST(AdaptiveDensity, resume_with_a_smaller_budget_owes_nothing) {
  AdaptiveDensity rich({.target_share = 0.1}, n, 5000);
  for (int i = 0; i < 4; ++i) pass(rich, 0.1);
  AdaptiveDensity poor({.target_share = 0.1, .budget = 0.01}, n, 1000);
  poor.resume(rich.words());
  EXPECT_EQ(poor.steps(), rich.steps());
  EXPECT_EQ(poor.k(), 1000u);
}

TEST(AdaptiveDensity, resume_refuses_words_that_are_none) {
  AdaptiveDensity density({.target_share = 0.1, .budget = 0.01}, n, 1000);
  AdaptiveDensity::Words words = density.words();
  words[0] = ~std::uint64_t{0};  // NaN
  EXPECT_THROW(density.resume(words), UsageError);
  words = density.words();
  words[1] = ~std::uint64_t{0};
  EXPECT_THROW(density.resume(words), UsageError);
}

TEST(AdaptiveDensity, share_cost_is_spread_over_the_interval) {
  EXPECT_EQ(share_cost(1, 32).messages, 0);
  EXPECT_EQ(share_cost(5, 1).messages, 3);
  EXPECT_EQ(share_cost(5, 1).bytes, 3 * 24);
  EXPECT_EQ(share_cost(5, 32).messages, 3.0 / 32);
}

// ---- Reducers whose density follows a target. Inputs are dyadic where mass is compared to the last bit. ----

constexpr Index kValues = 400;
constexpr std::size_t k = 20;

ReducerOptions adaptive(ReducerOptions options, double share = 0.6, double budget = 0) {
  options.adaptive = {.target_share = share, .budget = budget, .interval = 3};
  return options;
}
ReducerOptions circulant(double share = 0.6, double budget = 0) {
  return adaptive(preset_options("circulant", k), share, budget);
}
const AdaptiveDensity& density_of(const Reducer& reducer) { return state_of(reducer).density.adaptive(); }

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
  for (const Dense& theirs : gather_dense(comm, spread(update, kValues))) ASSERT_EQ(theirs, spread(update, kValues));
  ASSERT_EQ(plus(sum_over_ranks(comm, gradient), before), plus(sum_applied(reducer), sum_unsent(reducer)));
}

class ReducerAdaptive : public testing::TestWithParam<TestedMethod> {};

TEST_P(ReducerAdaptive, ranks_agree_on_k_within_the_budget_and_no_mass_is_lost) {
  for (const int P : {1, 3, 4})
    for (const auto& [share, budget] : {std::pair{0.05, 0.0}, {0.9, 0.0}, {0.95, 0.0533}})
      run_world("threads", P, [&](Communicator& comm) {
        Reducer reducer(comm, kValues, adaptive(GetParam().options(k), share, budget));
        double spent = 0;
        for (std::uint64_t step = 0; step < 30; ++step) {
          checked_step(reducer, gradient_of(reducer, step));
          spent += static_cast<double>(common_k(reducer));
          ASSERT_TRUE(budget == 0 || spent <= budget * kValues * static_cast<double>(step + 1));
        }
        EXPECT_EQ(static_cast<double>(density_of(reducer).spent()), spent);
        EXPECT_EQ(density_of(reducer).k() > k, share > 0.5);
        EXPECT_NE(density_of(reducer).k(), k);
      });
}

std::vector<TestedMethod> sparse_methods() {
  std::vector<TestedMethod> methods = all_methods();
  std::erase_if(methods, [](const TestedMethod& m) { return m.preset == "dense"; });
  return methods;
}
INSTANTIATE_TEST_SUITE_P(Methods, ReducerAdaptive, testing::ValuesIn(sparse_methods()),
                         [](const auto& method) { return method.param.name(); });

TEST(ReducerAdapts, share_is_the_mean_over_the_ranks_of_what_they_sent) {
  for (const int P : {1, 3})
    run_world("threads", P, [&](Communicator& comm) {
      Reducer reducer(comm, kValues, circulant());
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
    Reducer reducer(comm, kValues, circulant());
    const std::vector<float> zeros(kValues, 0.0F);
    for (int step = 0; step < 7; ++step) reducer.step(zeros);
    EXPECT_EQ(density_of(reducer).k(), k);
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
    Reducer reducer(comm, kValues, options);
    for (std::uint64_t step = 0; step < 6; ++step) reducer.step(gradient_of(reducer, step));
    EXPECT_EQ(density_of(reducer).steps(), 0u);
    EXPECT_EQ(density_of(reducer).k(), k);
    const std::vector<float> bad(kValues, std::nanf(""));
    EXPECT_TRUE(reducer.step(comm.rank() == 2 ? bad : gradient_of(reducer, 6)).skipped);
    EXPECT_EQ(density_of(reducer).steps(), 0u);
    for (std::uint64_t step = 6; step < 9; ++step) reducer.step(gradient_of(reducer, step));
    EXPECT_EQ(density_of(reducer).steps(), 3u);
    EXPECT_GT(density_of(reducer).k(), k);
    reducer.flush();
    EXPECT_EQ(density_of(reducer).steps(), 3u);
  });
}

// The last one goes on with other options.
TEST(ReducerAdapts, fewer_ranks_and_other_options_go_on_from_the_same_k) {
  std::vector<Bytes> states(4);
  std::size_t next = 0;
  std::uint64_t spent = 0;
  run_world("threads", 4, [&](Communicator& comm) {
    Reducer reducer(comm, kValues, circulant(0.95));
    for (std::uint64_t step = 0; step < 8; ++step) reducer.step(gradient_of(reducer, step));
    states[static_cast<std::size_t>(comm.rank())] = reducer.save();
    barrier(comm);
    if (comm.rank() != 0) return;
    next = density_of(reducer).k();
    spent = density_of(reducer).spent();
  });
  ASSERT_GT(next, k);
  run_world("threads", 3, [&](Communicator& comm) {
    Reducer reducer(comm, kValues, circulant(0.95));
    reducer.load_all(states);
    EXPECT_EQ(density_of(reducer).k(), next);
    EXPECT_EQ(density_of(reducer).spent(), spent);
    Reducer fixed(comm, kValues, preset_options("circulant", k));
    fixed.load_all(states);
    fixed.step(gradient_of(fixed, 8));
    EXPECT_EQ(common_k(fixed), k);
    Reducer thrifty(comm, kValues, circulant(0.95, 0.02));
    thrifty.load_all(states);
    for (std::uint64_t step = 8; step < 20; ++step) thrifty.step(gradient_of(thrifty, step));
    EXPECT_EQ(density_of(thrifty).k(), 8u);
  });
}

TEST(ReducerAdapts, load_of_different_densities_is_refused_by_all) {
  run_world("threads", 3, [](Communicator& comm) {
    const ReducerOptions options = circulant(0.5);
    Reducer one(comm, kValues, options);
    Reducer other(comm, kValues, options);
    for (std::uint64_t step = 0; step < 4; ++step) {
      one.step(gradient_of(one, step));
      other.step(std::vector<float>(kValues, 0.0F));
    }
    ASSERT_NE(density_of(one).words(), density_of(other).words());
    Reducer fresh(comm, kValues, options);
    const std::string message = message_of([&] { fresh.load((comm.rank() == 1 ? other : one).save()); });
    EXPECT_NE(message.find("different states"), std::string::npos) << message;
    EXPECT_EQ(density_of(fresh).steps(), 0u);
    barrier(comm);
  });
}

// Every step of the trial looks, the worst case.
TEST(ReducerAdapts, laws_hold) {
  for (const int P : {3, 4})
    for (const int group : {1, 2})
      run_world("threads", P, [&](Communicator& comm) {
        Trial trial{.options = preset_options("circulant", k), .group = group, .n = kValues, .steps = 6};
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
    Reducer reducer(comm, kValues, options);
    for (std::uint64_t step = 0; step < 20; ++step) {
      checked_step(reducer, gradient_of(reducer, step));
      common_k(reducer);
    }
    EXPECT_GT(density_of(reducer).k(), k);
  });
}

TEST(ReducerAdapts, in_nodes_share_updates_of_any_k) {
  for (const char* preset : {"circulant", "topka"})
    run_world("threads", 5, [&](Communicator& comm) {
      NodeReducer nodes(comm, kValues, adaptive(preset_options(preset, k), 0.95), {.group = 2});
      for (std::uint64_t step = 0; step < 20; ++step) {
        const Update update = nodes.step(make_input(Input::dyadic, kValues, comm.rank(), step, 1));
        for (const Dense& theirs : gather_dense(comm, spread(update, kValues)))
          ASSERT_EQ(theirs, spread(update, kValues));
      }
      if (nodes.reducer() != nullptr) {
        EXPECT_GT(density_of(*nodes.reducer()).k(), 3 * k);
      }
    });
}

TEST(ReducerAdapts, in_buckets_adapt_one_by_one_and_go_back_together) {
  run_world("threads", 3, [](Communicator& comm) {
    ReducerOptions options = adaptive({.preset = "circulant", .density = 0.05}, 0.9, 0.06);
    options.nan_policy = NanPolicy::skip;
    BucketedReducer buckets(comm, {100, 200, 100}, options, {.policy = FusionPolicy::tensor});
    for (std::uint64_t step = 0; step < 12; ++step)
      buckets.step(make_input(Input::dyadic, kValues, comm.rank(), step, 1));
    const Bytes before = buckets.save();
    auto bad = make_input(Input::dyadic, kValues, comm.rank(), 12, 1);
    bad[0] = std::nanf("");  // of the last bucket
    EXPECT_TRUE(buckets.step(bad).skipped);
    EXPECT_EQ(buckets.save(), before);
    for (std::size_t b = 0; b < 3; ++b) {
      const Reducer& reducer = buckets.reducer(b);
      EXPECT_EQ(density_of(reducer).steps(), 12u);
      EXPECT_LE(static_cast<double>(density_of(reducer).spent()), 12 * 0.06 * reducer.n());
    }
  });
}

}  // namespace
}  // namespace oktopk::density_test
