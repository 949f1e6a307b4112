// SPDX-License-Identifier: Apache-2.0
// SparseAdamW: bitwise AdamW where everything arrives; what silence means in each mode; schedules,
// weight decay and flushes in between.
#include "oktopk/optim/optimiser.h"

#include <gtest/gtest.h>

#include <cmath>

#include "oktopk/base/error.h"
#include "tests/support/adamw.h"
#include "tests/support/message.h"
#include "tests/support/optimisers.h"
#include "tests/support/runs.h"

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
      double squares = 0;
      for (int r = 0; r < 3; ++r)
        for (const float g : dyadic(r, step)) squares += double{g} * g / 3;
      ASSERT_GT(squares, 0.0625);
      Weights mean = mean_gradient(3, step);
      for (float& g : mean) g *= static_cast<float>(0.25 / std::sqrt(squares));
      adam.step(weights, dyadic(comm.rank(), step));
      reference.step(expected, mean, options.learning_rate);
    }
    EXPECT_LT(distance(weights, expected), 1e-5);
  });
}

// Every rank an Adam of its own; the mean of what they would do.
TEST(SparseAdamW, updates_mode_with_dense_steps_averages_local_adams) {
  AdamOptions options = kDecaying;
  options.sparsify = Sparsify::updates;
  Training training{.P = 3, .n = kSize, .steps = 12};
  training.reducer.preset = "dense";
  const auto weights = train(training, kind_of("adam", options), dyadic);
  AdamOptions no_decay = options;
  no_decay.weight_decay = 0;
  std::vector<AdamW> local(3, AdamW(no_decay, kSize));
  Weights expected = first_weights(kSize);
  for (int step = 0; step < training.steps; ++step) {
    Weights mean(kSize, 0.0F);
    for (int r = 0; r < 3; ++r) local[static_cast<std::size_t>(r)].step(mean, dyadic(r, step), 1e-3F);
    for (std::size_t i = 0; i < kSize; ++i) {
      expected[i] *= 1 - 1e-3F * options.weight_decay;
      expected[i] += mean[i] / 3;
    }
  }
  EXPECT_LT(distance(weights[0], expected), 1e-5);
}

TEST(SparseAdamW, interval_aware_touches_only_what_arrives) {
  run_world("threads", 3, [](Communicator& comm) {
    Reducer reducer(comm, kSize, preset_options("oktopk", 4));
    SparseAdamW adam(reducer, kDecaying);
    for (int step = 0; step < 5; ++step) {
      Weights weights = first_weights(kSize);
      const Update update = adam.step(weights, dyadic(comm.rank(), step));
      std::vector<bool> arrived(kSize);
      update.for_each([&](Index i, float) { arrived[i] = true; });
      for (std::size_t i = 0; i < kSize; ++i) EXPECT_EQ(weights[i] != first_weights(kSize)[i], arrived[i]) << i;
    }
  });
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

// Weights that never arrive decay as those of a dense optimiser do, once they are caught up.
TEST(SparseAdamW, lazy_weight_decay_equals_eager_after_catching_up) {
  const SparseVector some = make_sparse({{1, 1}});
  with_adam(2, kDecaying, [&](SparseAdamW& lazy) {
    Weights weights = {1, 1};
    double expected = 1;
    for (int step = 0; step < 40; ++step) {
      lazy.set_learning_rate(rate_at(step));
      lazy.apply(weights, step % 3 == 0 ? Update{some} : Update{});
      expected *= 1 - double{rate_at(step)} * 0.3F;
      if (step == 20) lazy.catch_up(weights);
    }
    EXPECT_NE(weights[0], static_cast<float>(expected));
    for (int twice = 0; twice < 2; ++twice) {
      lazy.catch_up(weights);
      EXPECT_NEAR(weights[0], expected, 1e-6);
    }
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

TEST(SparseAdamW, construction_with_bad_options_says_which) {
  run_world("threads", 1, [](Communicator& comm) {
    Reducer reducer(comm, kSize, {});
    const auto expect = [&](const AdamOptions& options, const std::string& part) {
      const std::string message = message_of([&] { SparseAdamW(reducer, options); });
      EXPECT_NE(message.find(part), std::string::npos) << message;
    };
    expect({.beta1 = 1}, "beta1 = 1");
    expect({.beta2 = -0.5F}, "beta2 = -0.5");
    expect({.epsilon = 0}, "epsilon = 0");
    expect({.weight_decay = -1}, "weight_decay = -1");
    expect({.learning_rate = 0.5F, .weight_decay = 2}, "less than 1");
    expect({.look_ahead = true}, "look_ahead");
    EXPECT_EQ(find_adam_mode("published"), AdamMode::published);
    EXPECT_NE(message_of([] { find_adam_mode("lazy"); }).find("interval_aware"), std::string::npos);
  });
}

}  // namespace
}  // namespace oktopk::adam_test
