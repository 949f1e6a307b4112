// SPDX-License-Identifier: Apache-2.0
// Interval-aware momentum of SparseSgd: what arrives late has moved as far as if it had come in
// time.
#include <gtest/gtest.h>

#include "oktopk/optim/reducer.h"
#include "oktopk/optim/sgd.h"
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
    SparseSgd sgd(reducer, options);
    body(sgd);
  });
}

Update one(const SparseVector& sum) { return {sum}; }

// A constant gradient, in each step or summed up over seven: equal whenever the sum has arrived.
TEST(SparseSgd, interval_aware_momentum_is_where_momentum_would_be) {
  for (const bool nesterov : {false, true})
    with_sgd({.momentum = 0.9F, .nesterov = nesterov}, [&](SparseSgd& rarely) {
      with_sgd({.momentum = 0.9F, .nesterov = nesterov}, [&](SparseSgd& often) {
        Weights late = {0};
        Weights in_time = {0};
        const SparseVector each = make_sparse({{0, 0.25F}});
        const SparseVector seven = make_sparse({{0, 7 * 0.25F}});
        for (int step = 1; step <= 70; ++step) {
          often.apply(in_time, one(each));
          rarely.apply(late, step % 7 == 0 ? one(seven) : Update{});
          if (step % 7 == 0) {
            EXPECT_NEAR(late[0], in_time[0], 1e-4 * -in_time[0]) << step;
          }
        }
        EXPECT_NEAR(rarely.momentum()[0], often.momentum()[0], 1e-5);
      });
    });
}

TEST(SparseSgd, interval_aware_momentum_moves_by_all_that_arrives_in_the_end) {
  with_sgd({.momentum = 0.9F}, [](SparseSgd& sgd) {
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

TEST(SparseSgd, interval_aware_momentum_touches_only_what_arrives) {
  run_world("threads", 3, [](Communicator& comm) {
    Reducer reducer(comm, 40, {.preset = "oktopk", .k = 4});
    SparseSgd sgd(reducer, {.momentum = 0.9F});
    Weights gradient(40);
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = static_cast<float>(i + 1);
    for (int step = 0; step < 5; ++step) {
      Weights weights = first_weights(40);
      std::vector<bool> arrived(40);
      sgd.step(weights, gradient).for_each([&](Index i, float) { arrived[i] = true; });
      for (std::size_t i = 0; i < 40; ++i)
        EXPECT_EQ(weights[i] != first_weights(40)[i], arrived[i]) << i;
    }
  });
}

}  // namespace
}  // namespace oktopk::sgd_interval_test
