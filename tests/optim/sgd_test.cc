// SPDX-License-Identifier: Apache-2.0
// SparseSGD against plain SGD where everything is sent, by hand on a small example where it is not; local momentum; and
// interval-aware momentum: what arrives late moves as if it had come in time, and as if as long a silence followed.
#include "oktopk/optim/optimiser.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "oktopk/reduce/reducer_state.h"
#include "tests/support/optimisers.h"
#include "tests/support/runs.h"
#include "tests/support/sparse.h"

namespace oktopk::sgd_test {
namespace {

constexpr Index kSize = 60;
constexpr int kSteps = 20;

Weights gaussian(int rank, int step) {
  return make_input(Input::gaussian, kSize, rank, static_cast<std::uint64_t>(step), 9);
}

// Ordinary SGD on the mean gradient, in double.
Weights reference(int P, const SgdOptions& o, const Gradients& gradients, int steps = kSteps) {
  const Weights start = first_weights(kSize);
  std::vector<double> w(start.begin(), start.end());
  std::vector<double> v(kSize, 0.0);
  for (int step = 0; step < steps; ++step) {
    std::vector<double> g(kSize, 0.0);
    double squares = 0;
    for (int r = 0; r < P; ++r) {
      const Weights mine = gradients(r, step);
      for (std::size_t i = 0; i < kSize; ++i) {
        g[i] += double{mine[i]} / P;
        squares += double{mine[i]} * mine[i] / P;
      }
    }
    const double norm = std::sqrt(squares);
    const double factor = o.clip_norm > 0 && norm > o.clip_norm ? o.clip_norm / norm : 1;
    for (std::size_t i = 0; i < kSize; ++i) {
      const double pull = o.learning_rate * (factor * g[i] + o.weight_decay * w[i]);
      v[i] = o.momentum * v[i] + pull;
      w[i] -= o.nesterov ? pull + o.momentum * v[i] : v[i];
    }
  }
  return {w.begin(), w.end()};
}

void expect_near(const Weights& got, const Weights& expected, double tolerance = 2e-5) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], tolerance) << i;
}

// Each the basis of one test of dense steps.
std::vector<SgdOptions> varieties() {
  return {{.learning_rate = 0.1F},
          {.learning_rate = 0.1F, .weight_decay = 0.1F},
          {.learning_rate = 0.1F, .clip_norm = 3},
          {.learning_rate = 0.1F, .momentum = 0.9F},
          {.learning_rate = 0.1F, .momentum = 0.9F, .nesterov = true},
          {.learning_rate = 0.1F, .momentum = 0.9F, .nesterov = true, .weight_decay = 0.1F, .clip_norm = 3}};
}

// Densely, or with k = n.
TEST(SparseSGD, steps_where_everything_arrives_are_ordinary_sgd_whatever_is_sparsified) {
  for (SgdOptions options : varieties())
    for (const Sparsify sparsify : {Sparsify::gradients, Sparsify::updates})
      for (const auto& [P, preset] : {std::pair{1, "dense"}, {3, "dense"}, {5, "dense"}, {3, "topka"}}) {
        options.sparsify = sparsify;
        const Training training{.P = P, .n = kSize, .steps = kSteps, .reducer = preset_options(preset, kSize)};
        const auto weights = train(training, kind_of("sgd", options), gaussian);
        expect_near(weights[0], reference(P, options, gaussian));
        for (const Weights& w : weights) EXPECT_EQ(w, weights[0]);
      }
}

// Two ranks, n = 3, k = 1, lr = 0.5: accumulate lr g, send the largest, apply the mean of the sums.
TEST(SparseSGD, step_is_algorithm_2_by_hand) {
  const auto run = gather_world("threads", 2, [](Communicator& comm) {
    Reducer reducer(comm, 3, preset_options("topka", 1));
    SparseSGD sgd(reducer, {.learning_rate = 0.5F});
    Weights weights = {0, 0, 0};
    std::vector<Weights> history;
    const std::vector<std::vector<Weights>> gradients = {{{8, 2, 6}, {2, 8, 4}}, {{0, 2, 2}, {2, 2, 2}}};
    for (const auto& step : gradients) {
      sgd.step(weights, step[static_cast<std::size_t>(comm.rank())]);
      history.push_back(weights);
    }
    history.emplace_back(state_of(reducer).unsent.values().begin(), state_of(reducer).unsent.values().end());
    return history;
  });
  // acc {4, 1, 3} and {1, 4, 2}: 4 at 0 and 4 at 1 go; left {0, 1, 3}, {1, 0, 2}.
  EXPECT_EQ(run[0][0], (Weights{-2, -2, 0}));
  // acc {0, 2, 4} and {2, 1, 3}: 4 and 3 at 2 go.
  EXPECT_EQ(run[0][1], (Weights{-2, -2, -3.5F}));
  EXPECT_EQ(run[1][1], run[0][1]);
  EXPECT_EQ(run[0][2], (Weights{0, 2, 0}));
  EXPECT_EQ(run[1][2], (Weights{2, 1, 0}));
}

TEST(SparseSGD, learning_rate_enters_when_the_gradient_does) {
  run_world("threads", 1, [](Communicator& comm) {
    Reducer reducer(comm, 2, preset_options("topka", 1));
    SparseSGD sgd(reducer, {.learning_rate = 1});
    Weights weights = {0, 0};
    sgd.step(weights, Weights{4, 2});
    sgd.set_learning_rate(0);
    sgd.step(weights, Weights{100, 100});
    EXPECT_EQ(weights, (Weights{-4, -2}));
  });
}

TEST(SparseSGD, published_momentum_moves_weights_that_did_not_arrive) {
  run_world("threads", 3, [](Communicator& comm) {
    Reducer reducer(comm, 2, preset_options("topka", 1));
    SparseSGD sgd(reducer, {.learning_rate = 1, .momentum = 0.5F, .interval_aware = false});
    Weights weights = {0, 0};
    sgd.step(weights, Weights{4, 1});
    EXPECT_EQ(weights, (Weights{-4, 0}));
    sgd.step(weights, Weights{0, 1});
    EXPECT_EQ(weights, (Weights{-6, -2}));
    EXPECT_EQ(saved_momentum(sgd), (Weights{2, 2}));
  });
}

TEST(SparseSGD, local_momentum_is_accumulated_until_it_is_sent) {
  run_world("threads", 3, [](Communicator& comm) {
    Reducer reducer(comm, 2, preset_options("topka", 1));
    SparseSGD sgd(reducer, {.learning_rate = 1, .momentum = 0.5F, .sparsify = Sparsify::updates});
    Weights weights = {0, 0};
    sgd.step(weights, Weights{4, 2});  // v = {4, 2}
    EXPECT_EQ(weights, (Weights{-4, 0}));
    sgd.step(weights, Weights{0, 0});  // v = {2, 1}: the accumulator has {2, 3}
    EXPECT_EQ(weights, (Weights{-4, -3}));
    EXPECT_EQ(saved_momentum(sgd), (Weights{2, 1}));
  });
}

TEST(SparseSGD, factor_masking_clears_the_momentum_of_what_this_rank_sent) {
  run_world("threads", 3, [](Communicator& comm) {
    ReducerOptions options = preset_options("topka", 1);
    options.warmup = dense_warmup(1);
    Reducer reducer(comm, 3, options);
    SparseSGD sgd(reducer,
                  {.learning_rate = 1, .momentum = 0.5F, .sparsify = Sparsify::updates, .factor_masking = true});
    const auto own = static_cast<std::size_t>(comm.rank());
    Weights weights = {0, 0, 0};
    Weights expected = {4, 4, 4};
    sgd.step(weights, expected);  // dense: nothing is masked
    EXPECT_EQ(saved_momentum(sgd), expected);
    Weights gradient = {0, 0, 0};
    gradient[own] = 8;  // this rank sends it, the others do not
    sgd.step(weights, gradient);
    expected = {2, 2, 2};
    expected[own] = 0;
    EXPECT_EQ(saved_momentum(sgd), expected);
  });
}

// Dense steps first, then sparse ones: what is applied and what is unsent make up ordinary
// momentum.
TEST(SparseSGD, local_momentum_goes_on_after_the_warm_up) {
  const SgdOptions options{.learning_rate = 0.1F, .momentum = 0.9F, .sparsify = Sparsify::updates};
  const auto flushed = gather_world("threads", 3, [&](Communicator& comm) {
    ReducerOptions sparse = preset_options("circulant", 5);
    sparse.warmup = dense_warmup(kSteps / 2);
    Reducer reducer(comm, kSize, sparse);
    SparseSGD sgd(reducer, options);
    Weights weights = first_weights(kSize);
    for (int step = 0; step < kSteps; ++step) sgd.step(weights, gaussian(comm.rank(), step));
    sgd.flush(weights);
    return weights;
  });
  expect_near(flushed[0], reference(3, options, gaussian));
}

// A flush makes up for the last step: as if everything had been sent in it.
TEST(SparseSGD, flush_is_part_of_the_last_step) {
  for (SgdOptions options : varieties()) {
    options.clip_norm = 0;
    run_world("threads", 3, [&](Communicator& comm) {
      Reducer reducer(comm, kSize, preset_options("circulant", 5));
      SparseSGD sgd(reducer, options);
      Weights weights = first_weights(kSize);
      for (int step = 0; step < 4; ++step) {
        sgd.step(weights, gaussian(comm.rank(), step));
        sgd.flush(weights);
      }
      expect_near(weights, reference(3, options, gaussian, 4));
      const Weights before = weights;
      sgd.flush(weights);
      EXPECT_EQ(weights, before);
    });
  }
}

// ---- Interval-aware momentum ----

// S after tau steps is S / tau in each of them and then a silence of tau - 1 steps, all at once.
TEST(SparseSGD, interval_aware_momentum_is_where_another_silence_would_bring_it) {
  constexpr float kMu = 0.9F;
  for (const bool nesterov : {false, true})
    run_world("threads", 1, [&](Communicator& comm) {
      Reducer reducer(comm, 1, {});
      SparseSGD sgd(reducer, {.momentum = kMu, .nesterov = nesterov});
      Weights weights = {0};
      double weight = 0;
      double velocity = 0;
      const auto step = [&](double gradient) {
        velocity = kMu * velocity + gradient;
        weight -= nesterov ? gradient + kMu * velocity : velocity;
      };
      float sum = 3;
      for (const int tau : {7, 1, 1, 30, 2, 1, 7, 600}) {
        for (int silent = 1; silent < tau; ++silent) sgd.apply(weights, {});
        sgd.apply(weights, {make_sparse({{0, sum}})});
        for (int s = 0; s < tau; ++s) step(double{sum} / tau);
        for (int s = 1; s < tau; ++s) step(0);
        EXPECT_NEAR(weights[0], weight, 1e-5 * std::abs(weight)) << tau;
        EXPECT_NEAR(saved_momentum(sgd)[0], velocity, 1e-5) << tau;
        sum = 2 - 0.75F * sum;
      }
    });
}

// In a dense step and in a flush nobody is about to be silent: the weight goes where momentum is.
TEST(SparseSGD, interval_aware_momentum_does_not_move_ahead_of_dense_steps_and_flushes) {
  for (const bool nesterov : {false, true})
    for (const bool flush : {false, true})
      run_world("threads", 1, [&](Communicator& comm) {
        const SgdOptions options{.learning_rate = 1, .momentum = 0.9F, .nesterov = nesterov};
        Reducer sparsely(comm, 2, {.preset = "topka", .k = 1});
        Reducer densely(comm, 2, {.preset = "dense"});
        SparseSGD sparse(sparsely, options);
        SparseSGD dense(densely, options);
        Weights weights = {0, 0};
        Weights expected = {0, 0};
        const Weights gradient = {64, 1};  // the second one is never sent
        const Weights all_at_once = {64, 6};
        for (int step = 1; step <= 6; ++step) {
          dense.step(expected, gradient);
          if (flush || step < 6) sparse.step(weights, gradient);
        }
        if (flush)
          sparse.flush(weights);
        else
          sparse.apply(weights, {.dense = all_at_once});
        for (std::size_t i = 0; i < 2; ++i) {
          EXPECT_NEAR(weights[i], expected[i], 1e-3);
          EXPECT_NEAR(saved_momentum(sparse)[i], saved_momentum(dense)[i], 1e-4);
        }
      });
}

}  // namespace
}  // namespace oktopk::sgd_test
