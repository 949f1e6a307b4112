// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/reduce/reducer_options.h"
#include "tests/reduce/bucketed.h"
#include "tests/support/faults.h"
#include "tests/support/tentative.h"

namespace oktopk::bucketed_reducer_tentative_test {
namespace {

constexpr std::size_t k = 24;

class BucketedTentative : public testing::TestWithParam<TestedMethod> {};

TEST_P(BucketedTentative, step_that_was_taken_back_twice_equals_a_plain_step_bit_by_bit) {
  for (const int P : {1, 2, 3, 5})
    run_world("threads", P, [&](Communicator& comm) {
      BucketedReducer plain(comm, kTensors, staged_options(GetParam(), k), kSize);
      BucketedReducer tentative(comm, kTensors, staged_options(GetParam(), k), kSize);
      for (std::uint64_t step = 0; step < 16; ++step) {
        const auto gradient = gradient_of(comm, step, step % 2 == 0 ? Input::gaussian : Input::skewed);
        step_with_two_roll_backs(tentative, {gradient}, result_of, result_of(plain.step(gradient)));
        ASSERT_EQ(tentative.save(), plain.save()) << "step " << step << ", P = " << P;
      }
      flush_with_a_roll_back(tentative, result_of, result_of(plain.flush()));
      EXPECT_EQ(tentative.save(), plain.save());
      EXPECT_EQ(tentative.reducer(0).steps(), 16U);
    });
}

// A rank dies at each of its messages, in any bucket. The others roll back: every bucket has its accumulator, with or
// without the gradient, and all else as it was.
TEST_P(BucketedTentative, failure_at_any_message_can_be_taken_back) {
  for (std::uint64_t at = 0; at < 120; at += at < 6 ? 1 : 5) {
    bool struck = false;
    run_world("threads", 3, [&](Communicator& world) {
      const auto steady = world.split(0, world.rank());
      const auto doomed = world.split(0, world.rank());
      BucketedReducer reducer(*steady, kTensors, GetParam().options(k), kSize);
      for (std::uint64_t step = 0; step < 3; ++step) reducer.step(gradient_of(world, step, Input::dyadic));
      FaultyCommunicator faulty(*doomed, {world.rank() == 1 ? FaultKind::die : FaultKind::none, at});
      BucketedReducer moved(faulty, kTensors, GetParam().options(k), kSize);
      for (std::size_t b = 0; b < moved.buckets().size(); ++b) {
        const Bytes state = write_state([&](StateWriter& to) { state_of(reducer.reducer(b)).write(to); });
        state_of(const_cast<Reducer&>(moved.reducer(b))).read(state);
      }
      const auto gradient = gradient_of(world, 3, Input::dyadic);
      const bool failed = fails_to_propose(moved, gradient);
      if (world.rank() == 1) struck = faulty.has_struck();
      ASSERT_TRUE(moved.is_open());
      moved.roll_back();
      for (std::size_t b = 0; b < moved.buckets().size(); ++b) {
        SCOPED_TRACE(text_of("message ", at, ", bucket ", b));
        const auto part = std::span(gradient).subspan(moved.buckets()[b].range.begin);
        expect_only_begun(moved.reducer(b), reducer.reducer(b), part, failed);
      }
      EXPECT_FALSE(moved.save().empty());
      barrier(world);
    });
    if (!struck) return;
  }
  FAIL() << "a step has fewer messages than this";
}

INSTANTIATE_TEST_SUITE_P(Methods, BucketedTentative, testing::ValuesIn(all_methods()),
                         [](const auto& method) { return method.param.name(); });

TEST(BucketedTentativeCalls, refusal_by_a_later_bucket_changes_nothing_and_leaves_nothing_open) {
  for (const NanPolicy policy : {NanPolicy::error, NanPolicy::skip})
    for (const bool is_retry : {false, true})
      run_world("threads", 3, [&](Communicator& comm) {
        ReducerOptions options = preset_options("circulant", k);
        options.nan_policy = policy;
        BucketedReducer plain(comm, kTensors, options, kSize);
        BucketedReducer tentative(comm, kTensors, options, kSize);
        for (BucketedReducer* r : {&plain, &tentative})
          for (std::uint64_t step = 0; step < 3; ++step) r->step(gradient_of(comm, step));
        const auto good = gradient_of(comm, 3);
        if (is_retry) {
          tentative.propose(good);
          tentative.roll_back();
        }
        const Bytes before = tentative.save();
        auto bad = gradient_of(comm, 99);
        if (comm.rank() == 2) bad[20] = std::numeric_limits<float>::quiet_NaN();  // in the last bucket
        if (policy == NanPolicy::error) {
          EXPECT_THROW(tentative.propose(bad), UsageError);
        } else {
          EXPECT_TRUE(tentative.propose(bad).skipped);
          tentative.commit();
        }
        EXPECT_FALSE(tentative.is_open());
        ASSERT_EQ(tentative.save(), before);
        const Result expected = result_of(plain.step(good));
        ASSERT_EQ(result_of(tentative.propose(good)), expected);
        tentative.commit();
        EXPECT_EQ(tentative.save(), plain.save());
      });
}

TEST(BucketedTentativeCalls, overlapped_proposal_equals_a_step) {
  run_world("threads", 3, [](Communicator& comm) {
    BucketedReducer plain(comm, kTensors, preset_options("circulant", k), kSize);
    BucketedReducer tentative(comm, kTensors, preset_options("circulant", k), kSize);
    for (std::uint64_t step = 0; step < 5; ++step) {
      const auto gradient = gradient_of(comm, step);
      tentative.begin_proposal(gradient);
      EXPECT_THROW(tentative.commit(), UsageError);
      EXPECT_THROW(tentative.roll_back(), UsageError) << "the step is in flight";
      for (std::size_t t = kTensors.size(); t-- > 0;) tentative.ready(t);
      const Result got = result_of(tentative.wait());
      tentative.commit();
      ASSERT_EQ(got, result_of(plain.step(gradient)));
    }
    EXPECT_EQ(tentative.save(), plain.save());
  });
}

TEST(BucketedTentativeCalls, calls_in_the_wrong_order_are_refused) {
  run_world("threads", 2, [](Communicator& comm) {
    BucketedReducer reducer(comm, kTensors, preset_options("circulant", k), kSize);
    const auto gradient = gradient_of(comm, 0);
    EXPECT_THROW(reducer.commit(), UsageError);
    EXPECT_THROW(reducer.roll_back(), UsageError);
    const Bytes state = reducer.save();
    reducer.propose(gradient);
    EXPECT_THROW(reducer.propose(gradient), UsageError);
    EXPECT_THROW(reducer.step(gradient), UsageError);
    EXPECT_THROW(reducer.flush(), UsageError);
    EXPECT_THROW(reducer.save(), UsageError);
    EXPECT_THROW(reducer.load(state), UsageError);
    reducer.roll_back();
    EXPECT_THROW(reducer.propose_flush(), UsageError) << "the retry comes first";
    reducer.propose(gradient);
    reducer.commit();
    EXPECT_EQ(reducer.metrics().step, 1U);
    EXPECT_THROW(reducer.propose(std::vector<float>(kValues + 1)), UsageError);
    EXPECT_FALSE(reducer.is_open());
    reducer.step(gradient);
  });
}

}  // namespace
}  // namespace oktopk::bucketed_reducer_tentative_test
