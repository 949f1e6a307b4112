// SPDX-License-Identifier: Apache-2.0
// States restored on another number of ranks keep their place in the warm-up. The mass that they owe and the states
// that are refused: synchroniser_conformance_test.cc, refusals_test.cc.
#include <gtest/gtest.h>

#include "tests/support/training.h"

namespace oktopk::reducer_reshape_test {
namespace {

constexpr Index n = 300;
constexpr std::size_t k = 15;

TEST(ReducerReshapes, load_all_keeps_the_place_in_the_warmup) {
  constexpr std::uint64_t kSteps = 6;
  ReducerOptions options = preset_options("circulant", k);
  options.warmup = dense_warmup(kSteps + 1);
  const auto states = gather_world("threads", 3, [&](Communicator& comm) {
    Reducer reducer(comm, n, options);
    for (std::uint64_t step = 0; step < kSteps; ++step) reducer.step(gradient_of(reducer, step));
    return reducer.save();
  });
  run_world("threads", 2, [&](Communicator& comm) {
    Reducer reducer(comm, n, options);
    reducer.load_all(states);
    EXPECT_TRUE(reducer.step(gradient_of(reducer, 0)).is_dense());
    EXPECT_FALSE(reducer.step(gradient_of(reducer, 1)).is_dense());
  });
}

}  // namespace
}  // namespace oktopk::reducer_reshape_test
