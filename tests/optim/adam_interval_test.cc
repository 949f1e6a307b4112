// SPDX-License-Identifier: Apache-2.0
// Steps without an arrival of a coordinate, in interval-aware SparseAdamW and in its rule.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "oktopk/base/random.h"
#include "oktopk/optim/adam_rule.h"
#include "oktopk/optim/optimiser.h"
#include "tests/support/adamw.h"
#include "tests/support/sparse.h"

namespace oktopk::adam_interval_test {
namespace {

// Gradients with a drift that noise hides, as in training: after the same number of steps the
// weights have moved as far whether they arrive in each step or their sum every 7 steps.
TEST(SparseAdamW, interval_aware_moves_as_far_as_dense_adam) {
  constexpr Index n = 400;
  constexpr int kInterval = 7;
  constexpr int kSteps = 140 * kInterval;
  const AdamOptions options{.learning_rate = 1e-3F, .beta2 = 0.999F};
  with_adam(n, options, [&](SparseAdamW& adam) {
    AdamW dense(options, n);
    Weights often(n), rarely(n), gradient(n), sum(n);
    Random random(4);
    for (int step = 1; step <= kSteps; ++step) {
      for (Index i = 0; i < n; ++i) sum[i] += gradient[i] = static_cast<float>(0.05 + random.normal());
      dense.step(often, gradient, options.learning_rate);
      const bool arrives = step % kInterval == 0;
      adam.apply(rarely, {.dense = arrives ? std::span<const float>(sum) : std::span<float>()});
      if (arrives) sum.assign(n, 0.0F);
    }
    const double far = -std::accumulate(often.begin(), often.end(), 0.0);
    const double as_far = -std::accumulate(rarely.begin(), rarely.end(), 0.0);
    EXPECT_NEAR(as_far / far, 1, 0.03);
  });
}

// Without noise S^2 / tau exceeds the mean square tau-fold: more careful than dense Adam.
TEST(SparseAdamW, interval_aware_with_constant_gradients_moves_by_the_root_of_the_interval) {
  with_adam(1, {.learning_rate = 1e-3F}, [](SparseAdamW& adam) {
    Weights weights = {0};
    const SparseVector sum = make_sparse({{0, 9 * 0.5F}});
    for (int step = 1; step <= 180; ++step) adam.apply(weights, step % 9 == 0 ? Update{sum} : Update{});
    EXPECT_NEAR(weights[0], -1e-3 * 180 / 3, 2e-3);  // some momentum is still to be moved
    EXPECT_EQ(saved_steps(adam), 180u);
  });
}

TEST(SparseAdamW, interval_aware_moves_by_the_learning_rates_of_the_silent_steps) {
  const SparseVector both = make_sparse({{0, 2}, {1, 2}});
  const Weights all = {2, 2};
  for (const Update& arrival : {Update{both}, Update{.dense = all}})
    with_adam(2, {}, [&](SparseAdamW& adam) {
      Weights weights = {0, 0};
      for (const float rate : {0.5F, 0.25F, 0.125F}) {
        adam.set_learning_rate(rate);
        adam.apply(weights, rate == 0.125F ? arrival : Update{});
      }
      // The first arrival: m grows from 0 to (1 - beta1^3) S / 3 on the way; where silence is to
      // follow it moves two steps more; vhat = S^2 / 3.
      const double ahead = arrival.is_dense() ? 0 : 0.271 * (0.9 + 0.81);
      const double grown = (0.1 + 0.19 + 0.271 + ahead) / 3 / 0.271;
      for (const float w : weights) EXPECT_NEAR(w, -0.875 * grown / std::sqrt(3.0), 1e-5);
    });
}

// An epsilon that dwarfs the second moment makes the moves linear: each S moves by S in the end,
// whether it comes after many steps or few, and though most of it may still be in the momentum.
TEST(SparseAdamW, interval_aware_loses_no_momentum) {
  constexpr float kEpsilon = 1e6F;
  with_adam(1, {.learning_rate = 1e6F, .epsilon = kEpsilon}, [](SparseAdamW& adam) {
    Weights weights = {0};
    const Weights nothing = {0};
    for (int step = 1; step <= 1200; ++step) {  // late enough that no bias is left to correct
      const bool arrives = step == 600 || step == 601 || step == 605 || step == 700;
      const SparseVector sum = make_sparse({{0, static_cast<float>(step % 7 + 1)}});
      adam.apply(weights, arrives ? Update{sum} : Update{});
    }
    adam.apply(weights, {.dense = nothing});
    const double brought = 600 % 7 + 601 % 7 + 605 % 7 + 700 % 7 + 4;
    EXPECT_NEAR(weights[0], -brought, 1e-3 * brought);
  });
}

// One coordinate under adam_arrive(), with a learning rate of 0.001 and no decay.
struct Coordinate {
  explicit Coordinate(double beta) : beta2(beta) {}

  void arrive(int silent_steps, float sum) {
    for (int step = 0; step <= silent_steps; ++step) clock.tick(1e-3, 0);
    const AdamStep step{.beta1 = 0.9,
                        .beta2 = beta2,
                        .epsilon = 1e-8,
                        .clock = clock.view(),
                        .first = first.up_to(0.9, clock.now()),
                        .second = second.up_to(beta2, clock.now())};
    const AdamRule<float> rule{step, clock.now(), true};
    weight = adam_arrive(rule, weight, sum, 0, {m, v, last, arrivals});
  }

  double beta2;
  IntervalClock clock;
  PowerTable first, second;
  float weight = 0, m = 0, v = 0;
  std::uint32_t last = 0, arrivals = 0;
};

TEST(AdamRule, ages_the_second_moment_by_the_silence_and_by_ten_steps_at_most) {
  for (const int silence : {1, 4, 9, 10, 19}) {
    Coordinate at(0.75);
    const float steps = static_cast<float>(silence) + 1;
    const auto kept = static_cast<float>(std::pow(0.75, std::min(steps, 10.0F)));
    float expected = 0;
    for (const float sum : {20.0F, 40.0F, 60.0F}) {
      at.arrive(silence, sum);
      expected = kept * expected + (1 - kept) * (sum * (sum / steps));
    }
    EXPECT_FLOAT_EQ(at.v, expected) << silence;
    EXPECT_EQ(at.arrivals, 3 * std::min(silence + 1, 10)) << silence;
  }
}

// A unit that was dead for 400 steps: its second moment would be a hundredth of what it should be.
TEST(AdamRule, takes_the_second_moment_from_a_surprise) {
  Coordinate at(0.999);
  for (int step = 1; step <= 400; ++step) at.arrive(0, 0);
  at.arrive(99, 50);
  const double bias = 1 - std::pow(0.999, 410);
  EXPECT_NEAR(at.v, bias * 50 * 0.5 / 25, 1e-4);
  EXPECT_GT(at.weight, -5 * 1e-3 * 10);  // five times the root of the interval at most
  EXPECT_LT(at.weight, -4 * 1e-3 * 10);
}

}  // namespace
}  // namespace oktopk::adam_interval_test
