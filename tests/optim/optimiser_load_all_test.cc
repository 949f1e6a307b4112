// SPDX-License-Identifier: Apache-2.0
// An optimiser continues from the states of another number of ranks.
#include <gtest/gtest.h>

#include "oktopk/optim/optimiser.h"
#include "tests/support/optimisers.h"
#include "tests/support/runs.h"

namespace oktopk::optimiser_load_all_test {
namespace {

constexpr Index kSize = 120;

ReducerOptions sparse_options() {
  ReducerOptions options = preset_options("circulant", 8);
  options.warmup = dense_warmup(3);
  return options;
}

void train_on(Optimiser& optimiser, Weights& weights, int begin, int end) {
  const int rank = optimiser.synchroniser().comm().rank();
  for (int step = begin; step < end; ++step) {
    optimiser.set_learning_rate(0.1F / static_cast<float>(step + 1));
    optimiser.step(weights, make_input(Input::gaussian, kSize, rank, static_cast<std::uint64_t>(step), 5));
  }
}

class OptimiserLoadAll : public testing::TestWithParam<OptimiserKind> {};

// No gradient differs, so the weights differ only by the order of the sums that share out unsent values.
TEST_P(OptimiserLoadAll, continues_on_any_number_of_ranks) {
  struct Saved {
    Bytes state;
    Weights weights, flushed;
  };
  const auto saved = gather_world("threads", 3, [&](Communicator& comm) {
    Reducer reducer(comm, kSize, sparse_options());
    const auto optimiser = GetParam().make(reducer);
    Weights weights = first_weights(kSize);
    train_on(*optimiser, weights, 0, 20);
    Saved mine{optimiser->save(), weights, weights};
    optimiser->flush(mine.flushed);
    optimiser->catch_up(mine.flushed);
    return mine;
  });
  std::vector<Bytes> states;
  for (const Saved& rank : saved) states.push_back(rank.state);
  for (const int P : {1, 2, 5}) {
    const auto continued = gather_world("threads", P, [&](Communicator& comm) {
      Reducer reducer(comm, kSize, sparse_options());
      const auto optimiser = GetParam().make(reducer);
      optimiser->load_all(states.size(), [&](std::size_t i) { return std::span<const std::byte>(states[i]); });
      Weights weights = saved[0].weights, flushed = weights;
      train_on(*optimiser, weights, 20, 30);
      optimiser->load_all(states.size(), [&](std::size_t i) { return std::span<const std::byte>(states[i]); });
      optimiser->flush(flushed);
      optimiser->catch_up(flushed);
      EXPECT_LT(distance(flushed, saved[0].flushed), 1e-4 * distance(saved[0].flushed, first_weights(kSize)));
      return weights;
    });
    for (const Weights& weights : continued) EXPECT_EQ(weights, continued[0]) << P;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, OptimiserLoadAll, testing::ValuesIn(optimiser_kinds()),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace oktopk::optimiser_load_all_test
