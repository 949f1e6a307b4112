// SPDX-License-Identifier: Apache-2.0
// Saved states of a NodeReducer: other nodes, other numbers of ranks, no nodes at all; and states
// that are refused for their nodes.
#include <gtest/gtest.h>

#include "oktopk/reduce/node_reducer.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/laws/subject.h"
#include "tests/support/message.h"
#include "tests/support/training.h"

namespace oktopk::node_reducer_state_test {
namespace {

constexpr Index n = 300;

ReducerOptions options_of(const std::string& preset) {
  ReducerOptions options = preset_options(preset, 15);
  options.warmup = {{2, 1}};
  return only_used(options);
}

// Three steps; the states of all ranks and the mean that a flush would apply.
struct Saved {
  std::vector<Bytes> states;
  Dense owed;
};

Saved run_and_save(const std::string& preset, int P, int group) {
  Saved all;
  all.states = gather_world("threads", P, [&](Communicator& comm) {
    const auto sync = make_synchroniser(comm, n, options_of(preset), group);
    for (std::uint64_t step = 0; step < 4; ++step) sync->step(make_input(Input::dyadic, n, comm.rank(), step, 1));
    Bytes state = sync->save();
    const Dense owed = spread(sync->flush(), n);
    if (comm.rank() == 0) all.owed = owed;
    return state;
  });
  return all;
}

class NodeState : public testing::TestWithParam<std::string> {};

TEST_P(NodeState, load_all_takes_states_of_any_nodes_and_of_none) {
  struct Shape {
    int P, group;
  };
  for (const Shape from : {Shape{5, 2}, Shape{4, 1}, Shape{6, 3}})
    for (const Shape to : {Shape{5, 3}, Shape{4, 2}, Shape{3, 0}, Shape{7, 2}}) {
      const Saved saved = run_and_save(GetParam(), from.P, from.group);
      run_world("threads", to.P, [&](Communicator& comm) {
        NodeReducer nodes(comm, n, options_of(GetParam()), {.group = to.group});
        nodes.load_all(saved.states);
        EXPECT_EQ(nodes.steps(), 4u);
        // A step of the restored run is sparse on all ranks: they know that the warm-up is over.
        EXPECT_EQ(nodes.step({}).is_dense(), GetParam() == "dense");
        nodes.load_all(saved.states);
        const Dense applied = spread(nodes.flush(), n);
        for (std::size_t i = 0; i < n; ++i) EXPECT_NEAR(applied[i], saved.owed[i], 1e-5) << i;
      });
    }
}

INSTANTIATE_TEST_SUITE_P(Presets, NodeState, testing::Values("circulant", "oktopk", "topka", "gtopk", "dense"),
                         [](const auto& test) { return test.param; });

TEST(NodeStateRefusal, state_of_other_nodes_or_none_is_refused_on_all_ranks) {
  const Saved by_two = run_and_save("circulant", 4, 2);
  const Saved flat = run_and_save("circulant", 4, 1);
  run_world("threads", 4, [&](Communicator& comm) {
    const auto r = static_cast<std::size_t>(comm.rank());
    NodeReducer nodes(comm, n, options_of("circulant"), {.group = 3});
    nodes.step(make_input(Input::dyadic, n, comm.rank(), 0, 1));
    const Bytes before = nodes.save();
    EXPECT_EQ(before.size() < 200, nodes.reducer() == nullptr);
    const auto expect = [&](const std::string& message, const std::string& part) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
      EXPECT_EQ(nodes.save(), before);
    };
    expect(message_of([&] { nodes.load(by_two.states[r]); }),
           "saved with other nodes (leaders of the ranks: 0 0 2 2; now: 0 0 0 3)");
    expect(message_of([&] { nodes.load(flat.states[r]); }), "saved by a Reducer, but a NodeReducer loads it");
    expect(message_of([&] { nodes.load_all(std::span(by_two.states).first(3)); }), "saved by one of 4 ranks");
    expect(message_of([&] { nodes.load_all({}); }), "no states were given");
    auto swapped = by_two.states;
    std::swap(swapped[1], swapped[3]);
    expect(message_of([&] { nodes.load_all(swapped); }), "rank order");
  });
}

TEST(NodeStates, a_warmup_that_is_over_does_not_begin_again_on_any_rank) {
  run_world("threads", 4, [](Communicator& comm) {
    NodeReducer nodes(comm, n, options_of("circulant"), {.group = 2});
    const Bytes begun = nodes.save();
    for (std::uint64_t step = 0; step < 4; ++step) nodes.step(make_input(Input::dyadic, n, comm.rank(), step, 1));
    ReducerOptions longer = options_of("circulant");
    longer.warmup = {{20, 1}};
    NodeReducer other(comm, n, longer, {.group = 2});
    other.load(nodes.save());
    EXPECT_TRUE(other.is_warm());
    EXPECT_FALSE(other.step({}).is_dense());
    other.load(begun);
    EXPECT_FALSE(other.is_warm());
    EXPECT_TRUE(other.step({}).is_dense());
  });
}

}  // namespace
}  // namespace oktopk::node_reducer_state_test
