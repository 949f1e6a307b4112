// SPDX-License-Identifier: Apache-2.0
// NodeReducer beside what it is made of: a Reducer over the nodes' sums. The nodes and the states that
// fit them. (The laws: synchroniser_conformance_test.cc, node_reducer_laws_test.cc.)
#include "oktopk/reduce/node_reducer.h"

#include <gtest/gtest.h>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/laws/subject.h"
#include "oktopk/reduce/nodes.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/reducer_state.h"
#include "tests/support/allocations.h"
#include "tests/support/message.h"
#include "tests/support/training.h"

namespace oktopk::node_reducer_test {
namespace {

class NodeReducerOfMethod : public testing::TestWithParam<TestedMethod> {};

// n = 300: summed by a tree; 6000: by regions, in nodes of more than two.
TEST_P(NodeReducerOfMethod, step_is_a_reducers_over_the_nodes_sums) {
  for (const auto& [P, group] : {std::pair{5, 2}, {7, 3}, {8, 4}, {4, 1}, {3, 5}})
    for (const Index n : {300U, 6000U})
      run_world("threads", P, [&](Communicator& comm) {
        ReducerOptions options = GetParam().options(n / 20);
        options.warmup = {{1, 1}, {1, 0.5}};
        NodeReducer nodes(comm, n, only_used(options), {.group = group});
        const auto node = comm.split(comm.rank() / group, 0);
        const bool leads = node->rank() == 0;
        EXPECT_EQ(nodes.reducer() != nullptr, leads);
        EXPECT_EQ(nodes.node_size(), node->size());
        const auto leaders = comm.split(leads ? 0 : 1, 0);
        Reducer flat(*leaders, n, only_used(options));
        for (std::uint64_t step = 0; step < 7; ++step) {
          const auto gradient = make_input(Input::dyadic, n, comm.rank(), step, 1);
          const Update update = nodes.step(gradient, 0.5F);
          const Dense sum = sum_over_ranks(*node, gradient);
          ASSERT_EQ(update.is_dense(), step == 0 || GetParam().preset == "dense");
          if (!leads) continue;
          const std::vector<float> brought(sum.begin(), sum.end());
          flat.step(brought, 0.5F);
          ASSERT_EQ(sum_applied(*nodes.reducer()), sum_applied(flat)) << "step " << step;
          ASSERT_TRUE(std::ranges::equal(state_of(*nodes.reducer()).unsent.values(), state_of(flat).unsent.values()));
        }
      });
}

INSTANTIATE_TEST_SUITE_P(Methods, NodeReducerOfMethod, testing::ValuesIn(all_methods()),
                         [](const auto& test) { return test.param.name(); });

TEST(Nodes, groups_of_consecutive_ranks_are_led_by_their_first) {
  run_world("threads", 5, [](Communicator& comm) {
    Workspace work;
    const Nodes nodes(comm, comm, 2, {}, work);
    EXPECT_EQ(nodes.leader_of, (std::vector<int>{0, 0, 2, 2, 4}));
    EXPECT_EQ(nodes.leaders, (std::vector<int>{0, 2, 4}));
    EXPECT_EQ(nodes.count(), 3);
    EXPECT_EQ(nodes.largest, 2);
    EXPECT_EQ(nodes.leader(), comm.rank() / 2 * 2);
    EXPECT_EQ(nodes.inside->size(), comm.rank() == 4 ? 1 : 2);
    EXPECT_EQ(nodes.inside->rank(), comm.rank() % 2);
    EXPECT_EQ(nodes.outside->size(), comm.rank() % 2 == 0 ? 3 : 2);
  });
}

TEST(Nodes, group_zero_joins_the_ranks_of_a_host) {
  run_world("threads", 3, [](Communicator& comm) {
    Workspace work;
    const Nodes nodes(comm, comm, 0, {}, work);
    EXPECT_EQ(nodes.leaders, std::vector<int>{0});
    EXPECT_EQ(nodes.inside->size(), 3);
    NodeReducer reducer(comm, 100, preset_options("oktopk", 10));
    EXPECT_EQ(reducer.node_size(), 3);
    EXPECT_EQ(std::vector<int>(reducer.leaders().begin(), reducer.leaders().end()), std::vector<int>{0});
    EXPECT_EQ(reducer.step(make_input(Input::dyadic, 100, comm.rank(), 0, 1)).size(), 10u);
  });
}

TEST(NodeReducer, gradients_of_16_bits_are_summed_as_they_are) {
  run_world("threads", 4, [](Communicator& comm) {
    std::vector<Bf16> halves(100);
    std::vector<float> floats(100);
    for (std::size_t i = 0; i < halves.size(); ++i) {
      halves[i].bits = static_cast<std::uint16_t>(0x3f00 + 7 * i + static_cast<std::size_t>(comm.rank()));
      floats[i] = to_float(halves[i]);
    }
    NodeReducer a(comm, 100, preset_options("topka", 10), {.group = 2});
    NodeReducer b(comm, 100, preset_options("topka", 10), {.group = 2});
    EXPECT_EQ(bits_of(a.step(halves, 0.25F)), bits_of(b.step(floats, 0.25F)));
  });
}

TEST(NodeReducer, sent_is_the_nodes_on_all_its_ranks) {
  run_world("threads", 5, [](Communicator& comm) {
    NodeReducer nodes(comm, 200, preset_options("circulant", 10), {.group = 2});
    const auto node = comm.split(comm.rank() / 2, 0);
    for (std::uint64_t step = 0; step < 3; ++step) {
      nodes.step(make_input(Input::dyadic, 200, comm.rank(), step, 1));
      EXPECT_GT(nodes.sent().size(), 0u);
      const auto all = gather_entries(*node, nodes.sent());
      for (const Entries& other : all) EXPECT_EQ(other, all[0]);
    }
    nodes.flush();
    EXPECT_TRUE(nodes.sent().empty());
  });
}

TEST(NodeReducer, construction_with_bad_or_different_options_is_refused_by_all) {
  run_world("threads", 4, [](Communicator& comm) {
    const bool is_last = comm.rank() == 3;
    const auto refusal = [&](Index n, auto change, int group) {
      ReducerOptions options = preset_options("circulant", 10);
      if (is_last) change(options);
      return message_of([&] { NodeReducer(comm, n, options, {.group = group}); });
    };
    const auto expect = [](const std::string& message, const std::string& part) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    };
    const auto nothing = [](auto&) {};
    expect(refusal(100, nothing, -1), "rank 0: node reducer: group = -1");
    expect(refusal(100, nothing, is_last ? 3 : 2), "rank 3 has nodes of 3");
    expect(refusal(is_last ? 101 : 100, nothing, 2), "rank 3 has n = 101");
    expect(refusal(
               100, [](auto& o) { o.k = 101; }, 2),
           "rank 3: reducer: k = 101");
    expect(refusal(
               100, [](auto& o) { o.k = 11; }, 2),
           "rank 3 has k 11");
    expect(refusal(
               100, [](auto& o) { o.decay = 2; }, 2),
           "rank 3: reducer: decay = 2");
    expect(refusal(
               100, [](auto& o) { o.check_every = 5; }, 2),
           "node reducer: rank 3 has check every 5, rank 0 has check every 0");
    expect(refusal(100, nothing, 2), "accepted");
    ReducerOptions skips = preset_options("circulant", 10);
    skips.allreduce.skips = "4,2,1";  // fits the ranks, but there are two leaders
    expect(message_of([&] { NodeReducer(comm, 100, skips, {.group = 2}); }), "4,2,1");
    skips.allreduce.skips = "2,1";
    expect(message_of([&] { NodeReducer(comm, 100, skips, {.group = 2}); }), "accepted");
  });
}

TEST(NodeReducer, predict_adds_the_inside_to_the_leaders_exchange) {
  const auto circulant = make_allreduce(find_preset("circulant"), {});
  const Problem all{.n = 1e6, .k = 1e4, .P = 32};
  Problem leaders = all;
  leaders.P = 8;
  const Cost outside = circulant->predict(leaders).expected;
  const Cost whole = predict_in_nodes(*circulant, all, 4).expected;
  const Cost inside = node_sum_cost(1e6, 4) + node_share_entries_cost(2e4, 4);
  EXPECT_DOUBLE_EQ(whole.bytes, outside.bytes + inside.bytes);
  EXPECT_DOUBLE_EQ(whole.messages, outside.messages + inside.messages);
  // Reduce-scatter and gather: 2 * 3/4 of all values; 2 + 3 messages; then two with the entries.
  EXPECT_DOUBLE_EQ(inside.bytes, 2 * 0.75 * 4e6 + 2 * (2 * 7 + 8 * 2e4));
  EXPECT_DOUBLE_EQ(inside.messages, 7);
  EXPECT_EQ(predict_in_nodes(*circulant, all, 1).expected.bytes, circulant->predict(all).expected.bytes);
}

TEST(NodeReducer, step_allocates_nothing_once_warm) {
  constexpr Index n = 20000;
  for (const int group : {2, 3}) {
    const auto ranks = gather_world("threads", 5, [&](Communicator& comm) {
      NodeReducer nodes(comm, n, ReducerOptions{}, {.group = group});
      std::vector<std::vector<float>> gradients;
      for (std::uint64_t i = 0; i < 4; ++i) gradients.push_back(make_input(Input::gaussian, n, comm.rank(), i, 1));
      std::size_t late = 0;
      for (std::size_t step = 0; step < 258; ++step) {
        const std::size_t before = allocations_of_this_thread();
        nodes.step(gradients[step % 4]);
        const bool refreshed = nodes.reducer() != nullptr && state_of(*nodes.reducer()).outcome.refreshed;
        if (step >= 250 && !refreshed) late += allocations_of_this_thread() - before;
      }
      return late;
    });
    for (std::size_t r = 0; r < ranks.size(); ++r) EXPECT_LE(ranks[r], 2u) << "rank " << r;
  }
}

// ---- Saved states ----

constexpr Index kStateSize = 300;

ReducerOptions in_warmup(const std::string& preset) {
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
    const auto sync = make_synchroniser(comm, kStateSize, in_warmup(preset), group);
    for (std::uint64_t step = 0; step < 4; ++step)
      sync->step(make_input(Input::dyadic, kStateSize, comm.rank(), step, 1));
    Bytes state = sync->save();
    const Dense owed = spread(sync->flush(), kStateSize);
    if (comm.rank() == 0) all.owed = owed;
    return state;
  });
  return all;
}

class NodeReducerStates : public testing::TestWithParam<std::string> {};

TEST_P(NodeReducerStates, load_all_takes_states_of_any_nodes_and_of_none) {
  struct Shape {
    int P, group;
  };
  for (const Shape from : {Shape{5, 2}, Shape{4, 1}, Shape{6, 3}})
    for (const Shape to : {Shape{5, 3}, Shape{4, 2}, Shape{3, 0}, Shape{7, 2}}) {
      const Saved saved = run_and_save(GetParam(), from.P, from.group);
      run_world("threads", to.P, [&](Communicator& comm) {
        NodeReducer nodes(comm, kStateSize, in_warmup(GetParam()), {.group = to.group});
        nodes.load_all(saved.states);
        EXPECT_EQ(nodes.steps(), 4u);
        // A step of the restored run is sparse on all ranks: they know that the warm-up is over.
        EXPECT_EQ(nodes.step({}).is_dense(), GetParam() == "dense");
        nodes.load_all(saved.states);
        const Dense applied = spread(nodes.flush(), kStateSize);
        for (std::size_t i = 0; i < kStateSize; ++i) EXPECT_NEAR(applied[i], saved.owed[i], 1e-5) << i;
      });
    }
}

INSTANTIATE_TEST_SUITE_P(Presets, NodeReducerStates, testing::Values("circulant", "oktopk", "topka", "gtopk", "dense"),
                         [](const auto& test) { return test.param; });

TEST(NodeReducer, state_of_other_nodes_is_refused_on_all_ranks) {
  const Saved by_two = run_and_save("circulant", 4, 2);
  run_world("threads", 4, [&](Communicator& comm) {
    const auto r = static_cast<std::size_t>(comm.rank());
    NodeReducer nodes(comm, kStateSize, in_warmup("circulant"), {.group = 3});
    nodes.step(make_input(Input::dyadic, kStateSize, comm.rank(), 0, 1));
    const Bytes before = nodes.save();
    EXPECT_EQ(before.size() < 200, nodes.reducer() == nullptr);
    const auto expect = [&](const std::string& message, const std::string& part) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
      EXPECT_EQ(nodes.save(), before);
    };
    expect(message_of([&] { nodes.load(by_two.states[r]); }),
           "saved with other nodes (leaders of the ranks: 0 0 2 2; now: 0 0 0 3)");
  });
}

TEST(NodeReducer, a_warmup_that_is_over_does_not_begin_again_on_any_rank) {
  run_world("threads", 4, [](Communicator& comm) {
    NodeReducer nodes(comm, kStateSize, in_warmup("circulant"), {.group = 2});
    const Bytes begun = nodes.save();
    for (std::uint64_t step = 0; step < 4; ++step)
      nodes.step(make_input(Input::dyadic, kStateSize, comm.rank(), step, 1));
    ReducerOptions longer = in_warmup("circulant");
    longer.warmup = {{20, 1}};
    NodeReducer other(comm, kStateSize, longer, {.group = 2});
    other.load(nodes.save());
    EXPECT_TRUE(other.is_warm());
    EXPECT_FALSE(other.step({}).is_dense());
    other.load(begun);
    EXPECT_FALSE(other.is_warm());
    EXPECT_TRUE(other.step({}).is_dense());
  });
}

}  // namespace
}  // namespace oktopk::node_reducer_test
