// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/reduce/node_reducer.h"
#include "oktopk/reduce/reducer_options.h"
#include "tests/support/faults.h"
#include "tests/support/tentative.h"

namespace oktopk::node_reducer_tentative_test {
namespace {

constexpr Index n = 300;
constexpr std::size_t k = 20;

std::vector<float> input_of(const Communicator& comm, std::uint64_t step, Input input = Input::dyadic) {
  return make_input(input, n, comm.rank(), step, 1);
}

class NodeTentative : public testing::TestWithParam<TestedMethod> {};

// Nodes of two; the last of an odd number of ranks is alone.
TEST_P(NodeTentative, step_that_was_taken_back_twice_equals_a_plain_step_bit_by_bit) {
  const ReducerOptions options = staged_options(GetParam(), k);
  for (const int P : {1, 2, 3, 5})
    run_world("threads", P, [&](Communicator& comm) {
      NodeReducer plain(comm, n, options, {.group = 2});
      NodeReducer tentative(comm, n, options, {.group = 2});
      for (std::uint64_t step = 0; step < 16; ++step) {
        const auto gradient = input_of(comm, step, step % 2 == 0 ? Input::gaussian : Input::skewed);
        step_with_two_roll_backs(tentative, {gradient, gradient}, bits_of, bits_of(plain.step(gradient)));
        ASSERT_EQ(tentative.save(), plain.save()) << "step " << step << ", P = " << P;
        ASSERT_EQ(tentative.steps(), step + 1);
        ASSERT_EQ(list_of(tentative.sent()), list_of(plain.sent()));
      }
      flush_with_a_roll_back(tentative, bits_of, bits_of(plain.flush()));
      EXPECT_EQ(tentative.save(), plain.save());
    });
}

// The sum over the ranks of this rank's node.
std::vector<float> node_sum(const Communicator& comm, std::uint64_t step) {
  std::vector<float> sum(n, 0.0F);
  for (int r = comm.rank(); r < comm.size() && r / 2 == comm.rank() / 2; ++r) {
    const auto gradient = make_input(Input::dyadic, n, r, step, 1);
    for (Index i = 0; i < n; ++i) sum[i] += gradient[i];
  }
  return sum;
}

// As the caller of a new NodeReducer, whose first messages a rank may not survive either.
std::unique_ptr<NodeReducer> loaded(Communicator& comm, const ReducerOptions& options, const Bytes& state) {
  try {
    auto reducer = std::make_unique<NodeReducer>(comm, n, options, NodeOptions{.group = 2});
    reducer->load(state);
    return reducer;
  } catch (const CommError&) {
    comm.kill();  // as a process that ends: others may wait for it in another part
    return nullptr;
  }
}

// A rank that leads a node, and one that does not, die at each of their messages.
TEST_P(NodeTentative, failure_at_any_message_can_be_taken_back) {
  const ReducerOptions options = GetParam().options(k);
  for (const int victim : {1, 2}) {
    bool struck = true;
    for (std::uint64_t at = 8; struck && at < 200; at += 3) {
      struck = false;
      run_world("threads", 5, [&](Communicator& world) {
        const auto steady = world.split(0, world.rank());
        const auto doomed = world.split(0, world.rank());
        NodeReducer reducer(*steady, n, options, {.group = 2});
        for (std::uint64_t step = 0; step < 3; ++step) reducer.step(input_of(world, step));
        FaultyCommunicator faulty(*doomed, {world.rank() == victim ? FaultKind::die : FaultKind::none, at});
        const auto moved = loaded(faulty, options, reducer.save());
        if (moved) {
          const bool failed = fails_to_propose(*moved, input_of(world, 3));
          ASSERT_TRUE(moved->is_open());
          moved->roll_back();
          if (reducer.reducer() != nullptr)  // this rank leads its node
            expect_only_begun(*moved->reducer(), *reducer.reducer(), node_sum(world, 3), failed);
          EXPECT_EQ(moved->steps(), 3U);
          EXPECT_FALSE(moved->save().empty());
        }
        if (world.rank() == victim) struck = faulty.has_struck();
        barrier(world);
      });
    }
    EXPECT_FALSE(struck) << "a step has fewer messages than this";
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, NodeTentative, testing::ValuesIn(all_methods()),
                         [](const auto& method) { return method.param.name(); });

TEST(NodeTentativeCalls, bad_gradient_of_one_rank_leaves_nothing_open) {
  for (const NanPolicy policy : {NanPolicy::error, NanPolicy::skip})
    run_world("threads", 3, [&](Communicator& comm) {
      ReducerOptions options = preset_options("circulant", k);
      options.nan_policy = policy;
      NodeReducer reducer(comm, n, options, {.group = 2});
      reducer.step(input_of(comm, 0));
      const Bytes before = reducer.save();
      auto bad = input_of(comm, 1);
      if (comm.rank() == 1) bad[7] = std::numeric_limits<float>::infinity();
      if (policy == NanPolicy::error) {
        EXPECT_THROW(reducer.propose(bad), UsageError);
      } else {
        EXPECT_TRUE(reducer.propose(bad).skipped);
        reducer.roll_back();
      }
      EXPECT_FALSE(reducer.is_open());
      EXPECT_EQ(reducer.save(), before);
      EXPECT_FALSE(reducer.propose_flush().skipped);
      reducer.commit();
    });
}

TEST(NodeTentativeCalls, calls_in_the_wrong_order_are_refused) {
  run_world("threads", 3, [](Communicator& comm) {
    NodeReducer reducer(comm, n, preset_options("circulant", k), {.group = 2});
    const auto gradient = input_of(comm, 0);
    EXPECT_THROW(reducer.commit(), UsageError);
    EXPECT_THROW(reducer.roll_back(), UsageError);
    const Bytes state = reducer.save();
    reducer.propose(gradient);
    EXPECT_THROW(reducer.propose(gradient), UsageError);
    EXPECT_THROW(reducer.step(gradient), UsageError);
    EXPECT_THROW(reducer.flush(), UsageError);
    EXPECT_THROW(reducer.forget(), UsageError);
    EXPECT_THROW(reducer.save(), UsageError);
    EXPECT_THROW(reducer.load(state), UsageError);
    reducer.roll_back();
    EXPECT_THROW(reducer.propose_flush(), UsageError) << "the retry comes first, on all ranks";
    reducer.propose(gradient);
    reducer.commit();
    EXPECT_EQ(reducer.steps(), 1U);
  });
}

}  // namespace
}  // namespace oktopk::node_reducer_tentative_test
