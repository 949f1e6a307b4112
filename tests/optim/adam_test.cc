// SPDX-License-Identifier: Apache-2.0
// SparseAdamW and its rule: bitwise AdamW where everything arrives; what silence means in each mode; schedules, weight
// decay and flushes in between.
#include "oktopk/optim/optimiser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "oktopk/base/random.h"
#include "oktopk/optim/adam_rule.h"
#include "tests/support/adamw.h"
#include "tests/support/optimisers.h"
#include "tests/support/runs.h"
#include "tests/support/sparse.h"

namespace oktopk::adam_test {
namespace {

constexpr Index kSize = 60;

// Sums of them are exact, and none is zero.
Weights dyadic(int rank, int step) {
  Weights gradient = make_input(Input::dyadic, kSize, rank, static_cast<std::uint64_t>(step), 2);
  for (float& g : gradient) g += 1;
  return gradient;
}

float rate_at(int step) { return 0.01F * static_cast<float>(1 + step % 5); }

Weights mean_gradient(int P, int step) {
  Weights mean(kSize, 0.0F);
  for (int r = 0; r < P; ++r) {
    const Weights mine = dyadic(r, step);
    for (std::size_t i = 0; i < kSize; ++i) mean[i] += mine[i];
  }
  for (float& x : mean) x /= static_cast<float>(P);
  return mean;
}

// The factor that clips the gradients of this step to a norm that they exceed.
float clipping(int P, int step, double norm) {
  double squares = 0;
  for (int r = 0; r < P; ++r)
    for (const float g : dyadic(r, step)) squares += double{g} * g / P;
  EXPECT_GT(squares, norm * norm);
  return static_cast<float>(norm / std::sqrt(squares));
}

const AdamOptions kDecaying{.beta2 = 0.99F, .weight_decay = 0.3F};

TEST(SparseAdamW, steps_where_everything_arrives_are_adamw_bitwise) {
  for (const AdamMode mode : {AdamMode::interval_aware, AdamMode::published})
    for (const std::string preset : {"dense", "topka"})
      for (const int P : {1, 3, 5})
        run_world("threads", P, [&](Communicator& comm) {
          Reducer reducer(comm, kSize, preset_options(preset, kSize));
          AdamOptions options = kDecaying;
          options.mode = mode;
          SparseAdamW adam(reducer, options);
          AdamW reference(options, kSize);
          Weights weights = first_weights(kSize);
          Weights expected = weights;
          for (int step = 0; step < 12; ++step) {
            adam.set_learning_rate(rate_at(step));
            adam.step(weights, dyadic(comm.rank(), step));
            reference.step(expected, mean_gradient(P, step), rate_at(step));
          }
          EXPECT_EQ(weights, expected) << preset << ", P = " << P << ", " << to_string(mode);
        });
}

TEST(SparseAdamW, clipping_scales_what_adamw_sees) {
  run_world("threads", 3, [](Communicator& comm) {
    ReducerOptions dense;
    dense.preset = "dense";
    Reducer reducer(comm, kSize, dense);
    AdamOptions options = kDecaying;
    options.clip_norm = 0.25F;
    SparseAdamW adam(reducer, options);
    AdamW reference(options, kSize);
    Weights weights = first_weights(kSize);
    Weights expected = weights;
    for (int step = 0; step < 12; ++step) {
      Weights mean = mean_gradient(3, step);
      for (float& g : mean) g *= clipping(3, step, 0.25);
      adam.step(weights, dyadic(comm.rank(), step));
      reference.step(expected, mean, options.learning_rate);
    }
    EXPECT_LT(distance(weights, expected), 1e-5);
  });
}

// Every rank has an Adam of its own, which sees clipped gradients; the weights move by the mean of the moves.
TEST(SparseAdamW, updates_mode_with_dense_steps_averages_local_adams) {
  AdamOptions options = kDecaying;
  options.sparsify = Sparsify::updates;
  options.clip_norm = 0.25F;
  Training training{.P = 3, .n = kSize, .steps = 12};
  training.reducer.preset = "dense";
  const auto weights = train(training, kind_of("adam", options), dyadic);
  AdamOptions no_decay = options;
  no_decay.weight_decay = 0;
  std::vector<AdamW> local(3, AdamW(no_decay, kSize));
  Weights expected = first_weights(kSize);
  for (int step = 0; step < training.steps; ++step) {
    Weights mean(kSize, 0.0F);
    for (int r = 0; r < 3; ++r) {
      Weights gradient = dyadic(r, step);
      for (float& g : gradient) g *= clipping(3, step, 0.25);
      local[static_cast<std::size_t>(r)].step(mean, gradient, 1e-3F);
    }
    for (std::size_t i = 0; i < kSize; ++i) {
      expected[i] *= 1 - 1e-3F * options.weight_decay;
      expected[i] += mean[i] / 3;
    }
  }
  EXPECT_LT(distance(weights[0], expected), 1e-5);
}

TEST(SparseAdamW, published_decays_moments_and_moves_weights_everywhere) {
  AdamOptions options{.learning_rate = 0.5F, .mode = AdamMode::published};
  with_adam(3, options, [](SparseAdamW& adam) {
    AdamW reference({}, 3);
    Weights weights = {0, 0, 0};
    Weights expected = weights;
    adam.apply(weights, {make_sparse({{1, 2}})});
    reference.step(expected, {0, 2, 0}, 0.5F);
    adam.apply(weights, {make_sparse({{2, -1}})});
    reference.step(expected, {0, 0, -1}, 0.5F);
    EXPECT_EQ(weights, expected);
  });
}

// Weights that never arrive decay as those of a dense optimiser do, once they are caught up. Catching up in between
// changes no other weight: its decay is paid once.
TEST(SparseAdamW, lazy_weight_decay_equals_eager_after_catching_up) {
  const SparseVector some = make_sparse({{1, 1}});
  Weights ends;
  for (const int caught_up_in : {-1, 19, 20})
    with_adam(2, kDecaying, [&](SparseAdamW& lazy) {
      Weights weights = {1, 1};
      double expected = 1;
      for (int step = 0; step < 40; ++step) {
        lazy.set_learning_rate(rate_at(step));
        lazy.apply(weights, step % 3 == 0 ? Update{some} : Update{});
        expected *= 1 - double{rate_at(step)} * 0.3F;
        if (step == caught_up_in) lazy.catch_up(weights);
      }
      EXPECT_NE(weights[0], static_cast<float>(expected));
      for (int twice = 0; twice < 2; ++twice) {
        lazy.catch_up(weights);
        EXPECT_NEAR(weights[0], expected, 1e-6);
      }
      ends.push_back(weights[1]);
      EXPECT_NEAR(weights[1], ends[0], 1e-6);
    });
}

TEST(SparseAdamW, flush_ends_intervals_and_makes_no_step) {
  run_world("threads", 3, [](Communicator& comm) {
    Reducer reducer(comm, kSize, preset_options("circulant", 5));
    SparseAdamW adam(reducer, kDecaying);
    Weights weights = first_weights(kSize);
    adam.flush(weights);
    EXPECT_EQ(weights, first_weights(kSize));
    for (int step = 0; step < 6; ++step) adam.step(weights, dyadic(comm.rank(), step));
    adam.flush(weights);
    EXPECT_EQ(saved_steps(adam), 6u);
    EXPECT_EQ(reducer.unsent_norm(), 0);
    const Weights before = weights;
    adam.catch_up(weights);
    adam.flush(weights);
    EXPECT_EQ(weights, before);
  });
}

TEST(SparseAdamW, flush_in_published_mode_is_one_more_step_if_anything_is_unsent) {
  run_world("threads", 3, [](Communicator& comm) {
    AdamOptions options = kDecaying;
    options.mode = AdamMode::published;
    Reducer reducer(comm, kSize, preset_options("circulant", 5));
    SparseAdamW adam(reducer, options);
    Weights weights = first_weights(kSize);
    adam.step(weights, dyadic(comm.rank(), 0));
    adam.flush(weights);
    EXPECT_EQ(saved_steps(adam), 2u);
    const Weights before = weights;
    adam.flush(weights);
    EXPECT_EQ(saved_steps(adam), 2u);
    EXPECT_EQ(weights, before);
  });
}

// ---- Steps without an arrival ----

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
    for (int step = 0; step <= silent_steps; ++step) clock.clock.tick(1e-3, 0);
    const AdamRule<float> rule{clock.step(0.9, beta2), clock.clock.now(), true};
    weight = adam_arrive(rule, weight, sum, 0, {m, v, last, arrivals});
  }

  double beta2;
  AdamClock clock;
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
}  // namespace oktopk::adam_test
