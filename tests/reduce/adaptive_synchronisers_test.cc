// SPDX-License-Identifier: Apache-2.0
// An adaptive density inside of the synchronisers that are made of Reducers.
#include <gtest/gtest.h>

#include <cmath>

#include "oktopk/reduce/bucketed_reducer.h"
#include "oktopk/reduce/density.h"
#include "oktopk/reduce/node_reducer.h"
#include "oktopk/reduce/reducer_state.h"
#include "tests/support/training.h"

namespace oktopk::adaptive_synchronisers_test {
namespace {

constexpr Index n = 400;
constexpr std::size_t k = 20;

ReducerOptions adaptive(ReducerOptions options, double share, double budget = 0) {
  options.adaptive = {.target_share = share, .budget = budget, .interval = 3};
  return options;
}

TEST(AdaptiveSynchronisers, nodes_share_updates_of_any_k) {
  for (const char* preset : {"circulant", "topka"})
    run_world("threads", 5, [&](Communicator& comm) {
      NodeReducer nodes(comm, n, adaptive(preset_options(preset, k), 0.95), {.group = 2});
      for (std::uint64_t step = 0; step < 20; ++step) {
        const Update update = nodes.step(make_input(Input::dyadic, n, comm.rank(), step, 1));
        for (const Dense& theirs : gather_dense(comm, spread(update, n))) ASSERT_EQ(theirs, spread(update, n));
      }
      if (nodes.reducer() != nullptr) {
        EXPECT_GT(state_of(*nodes.reducer()).density.adaptive().k(), 3 * k);
      }
    });
}

TEST(AdaptiveSynchronisers, buckets_adapt_one_by_one_and_go_back_together) {
  run_world("threads", 3, [](Communicator& comm) {
    ReducerOptions options = adaptive({.preset = "circulant", .density = 0.05}, 0.9, 0.06);
    options.nan_policy = NanPolicy::skip;
    BucketedReducer buckets(comm, {100, 200, 100}, options, {.policy = FusionPolicy::tensor});
    for (std::uint64_t step = 0; step < 12; ++step) buckets.step(make_input(Input::dyadic, n, comm.rank(), step, 1));
    const Bytes before = buckets.save();
    auto bad = make_input(Input::dyadic, n, comm.rank(), 12, 1);
    bad[0] = std::nanf("");  // of the last bucket
    EXPECT_TRUE(buckets.step(bad).skipped);
    EXPECT_EQ(buckets.save(), before);
    for (std::size_t b = 0; b < 3; ++b) {
      const Reducer& reducer = buckets.reducer(b);
      EXPECT_EQ(state_of(reducer).density.adaptive().steps(), 12u);
      EXPECT_LE(static_cast<double>(state_of(reducer).density.adaptive().spent()), 12 * 0.06 * reducer.n());
    }
  });
}

}  // namespace
}  // namespace oktopk::adaptive_synchronisers_test
