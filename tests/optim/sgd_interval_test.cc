// SPDX-License-Identifier: Apache-2.0
// Interval-aware momentum of SparseSGD: what arrives late moves as if it had come in time, and as
// if as long a silence followed.
#include <gtest/gtest.h>

#include <cmath>

#include "oktopk/optim/optimiser.h"
#include "oktopk/reduce/reducer.h"
#include "tests/support/optimisers.h"
#include "tests/support/sparse.h"
#include "tests/support/world.h"

namespace oktopk::sgd_interval_test {
namespace {

// A single rank that is told what arrives.
template <class Body>
void with_sgd(const SgdOptions& options, Body body) {
  run_world("threads", 1, [&](Communicator& comm) {
    Reducer reducer(comm, 1, {});
    SparseSGD sgd(reducer, options);
    body(sgd);
  });
}

Update one(const SparseVector& sum) { return {sum}; }

// S after tau steps is S / tau in each of them and then a silence of tau - 1 steps, all at once.
TEST(SparseSGD, interval_aware_momentum_is_where_another_silence_would_bring_it) {
  constexpr float kMu = 0.9F;
  for (const bool nesterov : {false, true})
    with_sgd({.momentum = kMu, .nesterov = nesterov}, [&](SparseSGD& sgd) {
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
        sgd.apply(weights, one(make_sparse({{0, sum}})));
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

TEST(SparseSGD, interval_aware_momentum_moves_by_all_that_arrives_in_the_end) {
  with_sgd({.momentum = 0.9F}, [](SparseSGD& sgd) {
    Weights weights = {0};
    double brought = 0;
    for (int step = 1; step <= 900; ++step) {
      const bool arrives = step == 3 || step == 4 || step == 50 || step == 52 || step == 900;
      const SparseVector sum = make_sparse({{0, static_cast<float>(step % 9)}});
      if (arrives) brought += step % 9;
      sgd.apply(weights, arrives ? one(sum) : Update{});
    }
    EXPECT_NEAR(weights[0], -brought / (1 - 0.9), 1e-3 * brought);
  });
}

TEST(SparseSGD, interval_aware_momentum_touches_only_what_arrives) {
  run_world("threads", 3, [](Communicator& comm) {
    Reducer reducer(comm, 40, {.preset = "oktopk", .k = 4});
    SparseSGD sgd(reducer, {.momentum = 0.9F});
    Weights gradient(40);
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = static_cast<float>(i + 1);
    for (int step = 0; step < 5; ++step) {
      Weights weights = first_weights(40);
      std::vector<bool> arrived(40);
      sgd.step(weights, gradient).for_each([&](Index i, float) { arrived[i] = true; });
      for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(weights[i] != first_weights(40)[i], arrived[i]) << i;
    }
  });
}

}  // namespace
}  // namespace oktopk::sgd_interval_test
