// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/reduce/reducer_options.h"
#include "tests/reduce/bucketed.h"
#include "tests/support/faults.h"
#include "tests/support/training.h"

namespace oktopk::bucketed_reducer_tentative_test {
namespace {

constexpr std::size_t k = 24;

ReducerOptions options_of(const TestedMethod& method) {
  ReducerOptions options = method.options(k);
  options.warmup = {{2, 1}, {2, 0.2}};
  return only_used(options);
}

std::vector<Bytes> rests_of(const BucketedReducer& reducer) {
  std::vector<Bytes> rests;
  for (std::size_t b = 0; b < reducer.buckets().size(); ++b) rests.push_back(rest_of(reducer.reducer(b)));
  return rests;
}

std::vector<float> accumulator_of(const BucketedReducer& reducer, std::size_t b) {
  const auto values = state_of(reducer.reducer(b)).unsent.values();
  return {values.begin(), values.end()};
}

class BucketedTentative : public testing::TestWithParam<TestedMethod> {};

TEST_P(BucketedTentative, step_that_was_taken_back_twice_equals_a_plain_step_bit_by_bit) {
  for (const int P : {1, 2, 3, 5})
    run_world("threads", P, [&](Communicator& comm) {
      BucketedReducer plain(comm, kTensors, options_of(GetParam()), kSize);
      BucketedReducer tentative(comm, kTensors, options_of(GetParam()), kSize);
      for (std::uint64_t step = 0; step < 16; ++step) {
        const auto gradient = gradient_of(comm, step, step % 2 == 0 ? Input::gaussian : Input::skewed);
        const Result expected = result_of(plain.step(gradient));
        ASSERT_EQ(result_of(tentative.propose(gradient)), expected);
        tentative.roll_back();
        ASSERT_EQ(result_of(tentative.propose(gradient)), expected) << "the gradient is not added twice";
        tentative.roll_back();
        ASSERT_EQ(result_of(tentative.propose({})), expected) << "step " << step << ", P = " << P;
        tentative.commit();
        ASSERT_EQ(tentative.save(), plain.save()) << "step " << step << ", P = " << P;
      }
      const Result flushed = result_of(plain.flush());
      ASSERT_EQ(result_of(tentative.propose_flush()), flushed);
      tentative.roll_back();
      ASSERT_EQ(result_of(tentative.propose_flush()), flushed);
      tentative.commit();
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
      bool failed = false;
      try {
        moved.propose(gradient);
      } catch (const CommError&) {
        failed = true;
      }
      if (world.rank() == 1) struck = faulty.has_struck();
      ASSERT_TRUE(moved.is_open());
      moved.roll_back();
      ASSERT_EQ(rests_of(moved), rests_of(reducer)) << "message " << at;
      for (std::size_t b = 0; b < moved.buckets().size(); ++b) {
        const std::vector<float> unchanged = accumulator_of(reducer, b);
        std::vector<float> expected = unchanged;
        for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += gradient[moved.buckets()[b].range.begin + i];
        const std::vector<float> now = accumulator_of(moved, b);
        ASSERT_TRUE(now == expected || (failed && now == unchanged)) << "message " << at << ", bucket " << b;
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
