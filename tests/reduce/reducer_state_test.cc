// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/reducer_state.h"

#include <gtest/gtest.h>

#include "oktopk/optim/optimiser.h"
#include "oktopk/reduce/bucketed_reducer.h"
#include "oktopk/reduce/node_reducer.h"
#include "oktopk/reduce/reducer_options.h"
#include "tests/support/message.h"
#include "tests/support/runs.h"
#include "tests/support/training.h"

namespace oktopk::reducer_state_test {
namespace {

constexpr Index n = 300;
constexpr std::size_t k = 15;

// tau = 4, tau' = 3; two dense steps and two of another k before the steps at k.
ReducerOptions with_warmup(const TestedMethod& method, const std::string& codec) {
  ReducerOptions options = method.options(k);
  options.allreduce.codec = parse_codec(codec);
  options.warmup = {{2, 1}, {2, 0.2}};
  options.decay = 0.75F;
  return options;
}

using Gradient = std::function<std::vector<float>(const Reducer&, std::uint64_t step)>;

// Runs `steps` steps without a pause and keeps the state before each of them, and at the end. From
// each of `pauses`, a new Reducer must give the same updates and states for `more` steps.
void expect_resumption(Communicator& comm, const ReducerOptions& options, int steps, const std::vector<int>& pauses,
                       int more, const Gradient& gradient) {
  std::vector<Bytes> states;
  std::vector<std::uint64_t> bits;
  {
    Reducer whole(comm, n, only_used(options));
    for (int step = 0; step < steps; ++step) {
      states.push_back(whole.save());
      bits.push_back(bits_of(whole.step(gradient(whole, static_cast<std::uint64_t>(step)))));
    }
    states.push_back(whole.save());
  }
  for (const int pause : pauses) {
    Reducer resumed(comm, n, only_used(options));
    resumed.load(states[static_cast<std::size_t>(pause)]);
    EXPECT_EQ(resumed.steps(), static_cast<std::uint64_t>(pause));
    for (int step = pause; step < std::min(steps, pause + more); ++step) {
      const auto s = static_cast<std::size_t>(step);
      ASSERT_EQ(resumed.save(), states[s]) << "pause " << pause << ", step " << step;
      ASSERT_EQ(bits_of(resumed.step(gradient(resumed, s))), bits[s])
          << "pause " << pause << ", step " << step << ", P = " << comm.size();
      ASSERT_EQ(resumed.save(), states[s + 1]);
    }
  }
}

class ReducerState : public testing::TestWithParam<TestedMethod> {};

TEST_P(ReducerState, resumed_run_is_the_uninterrupted_one_bit_by_bit) {
  for (const int P : {1, 3, 4})
    for (const std::string codec : {"coo32+fp32", "elias_fano+log8"})
      run_world("threads", P, [&](Communicator& comm) {
        expect_resumption(
            comm, with_warmup(GetParam(), codec), 12, {0, 1, 2, 3, 4, 6, 8, 9}, 4,
            [](const Reducer& reducer, std::uint64_t step) { return gradient_of(reducer, step, Input::gaussian); });
      });
}

TEST_P(ReducerState, resumed_after_a_flush_goes_on_alike) {
  run_world("threads", 3, [&](Communicator& comm) {
    Reducer whole(comm, n, GetParam().options(k));
    for (std::uint64_t step = 0; step < 5; ++step) whole.step(gradient_of(whole, step));
    whole.flush();
    Reducer resumed(comm, n, GetParam().options(k));
    resumed.load(whole.save());
    for (std::uint64_t step = 5; step < 9; ++step) {
      const auto gradient = gradient_of(whole, step);
      ASSERT_EQ(bits_of(resumed.step(gradient)), bits_of(whole.step(gradient)));
    }
    EXPECT_EQ(bits_of(resumed.flush()), bits_of(whole.flush()));
  });
}

std::string method_name(const testing::TestParamInfo<TestedMethod>& info) { return info.param.name(); }

INSTANTIATE_TEST_SUITE_P(Methods, ReducerState, testing::ValuesIn(all_methods()), method_name);

// The mass moves to the other end after a while, so that the cuts change long after the start.
std::vector<float> wandering(const Reducer& reducer, std::uint64_t step) {
  auto gradient = gradient_of(reducer, step, Input::skewed);
  if (step >= 10) std::reverse(gradient.begin(), gradient.end());
  return gradient;
}

TEST(ReducerStates, resumed_around_a_change_of_cuts_is_the_same) {
  for (const ResidualKind rule : {ResidualKind::owner_memory, ResidualKind::sender_keeps})
    run_world("threads", 3, [&](Communicator& comm) {
      const ReducerOptions options = TestedMethod{"circulant", rule}.options(k);
      Reducer reducer(comm, n, only_used(options));
      std::vector<int> around;
      constexpr int steps = 24;
      for (int step = 0; step < steps; ++step) {
        const Index begin = state_of(reducer).unsent.memory().region.begin;
        reducer.step(wandering(reducer, static_cast<std::uint64_t>(step)));
        const bool moved =
            sum_over_ranks(
                comm, std::vector<float>{begin != state_of(reducer).unsent.memory().region.begin ? 1.0F : 0.0F})[0] > 0;
        if (step > 0 && moved) around.insert(around.end(), {step, step + 1, step + 2});
      }
      ASSERT_FALSE(around.empty()) << to_string(rule);
      expect_resumption(comm, options, steps, around, 4, wandering);
    });
}

TEST(ReducerStates, load_of_a_reducer_of_nothing_works) {
  run_world("threads", 3, [](Communicator& comm) {
    Reducer reducer(comm, 0, {});
    reducer.step({});
    Reducer resumed(comm, 0, {});
    resumed.load(reducer.save());
    EXPECT_EQ(resumed.step({}).size(), 0u);
    EXPECT_EQ(resumed.steps(), 2u);
  });
}

// The messages of all ranks when each loads what `choose` gives it. Asserts that the reducer and
// its next step are as if nothing had happened.
std::vector<std::string> refusals(int P, const std::string& preset,
                                  const std::function<Bytes(Communicator&, Reducer&)>& choose) {
  return gather_world("threads", P, [&](Communicator& comm) {
    Reducer reducer(comm, n, TestedMethod{preset, ResidualKind::none}.options(k));
    Reducer twin(comm, n, TestedMethod{preset, ResidualKind::none}.options(k));
    for (std::uint64_t step = 0; step < 4; ++step) {
      reducer.step(gradient_of(reducer, step));
      twin.step(gradient_of(twin, step));
    }
    const Bytes bad = choose(comm, reducer);
    const Bytes before = reducer.save();
    const std::string message = message_of([&] { reducer.load(bad); });
    EXPECT_EQ(reducer.save(), before);
    EXPECT_EQ(bits_of(reducer.step(gradient_of(reducer, 4))), bits_of(twin.step(gradient_of(twin, 4))));
    return message;
  });
}

void expect_refusals(const std::string& part, const std::function<Bytes(Communicator&, Reducer&)>& choose,
                     const std::vector<std::string>& presets = {"oktopk", "circulant"}) {
  for (const std::string& preset : presets)
    for (const int P : {2, 3}) {
      const auto messages = refusals(P, preset, choose);
      for (const std::string& message : messages) {
        EXPECT_NE(message.find(part), std::string::npos) << message;
        EXPECT_EQ(message, messages[0]);
      }
    }
}

TEST(ReducerStates, load_of_a_state_damaged_on_one_rank_changes_nothing_anywhere) {
  expect_refusals("rank 1: state: damaged", [](Communicator& comm, Reducer& reducer) {
    Bytes state = reducer.save();
    if (comm.rank() == 1) state[state.size() / 2] ^= std::byte{4};
    return state;
  });
  expect_refusals("rank 0: state: ", [](Communicator& comm, Reducer& reducer) {
    Bytes state = reducer.save();
    if (comm.rank() == 0) state.pop_back();
    return state;
  });
  expect_refusals("rank 1: state: 0 bytes",
                  [](Communicator& comm, Reducer& reducer) { return comm.rank() == 1 ? Bytes{} : reducer.save(); });
}

TEST(ReducerStates, load_of_another_rank_s_state_names_both) {
  // Both ends of the world exchange their states by hand.
  expect_refusals("saved by rank", [](Communicator& comm, Reducer& reducer) {
    const Bytes mine = reducer.save();
    Gathered all;
    const std::vector<std::size_t> capacities(static_cast<std::size_t>(comm.size()), 100000);
    allgatherv(comm, mine, capacities, all);
    const auto theirs = all.of(comm.size() - 1 - comm.rank());
    return Bytes(theirs.begin(), theirs.end());
  });
}

TEST(ReducerStates, load_of_another_problem_or_other_options_says_what_differs) {
  const auto of = [](Index other_n, auto change) {
    return [=](Communicator& comm, Reducer& reducer) {
      TestedMethod method{std::string(state_of(reducer).allreduce->name()), ResidualKind::none};
      ReducerOptions options = method.options(k);
      change(options);
      Reducer other(comm, other_n, only_used(options));
      for (std::uint64_t step = 0; step < 4; ++step) other.step(gradient_of(other, step));
      return comm.rank() == 1 ? other.save() : reducer.save();
    };
  };
  expect_refusals("n = 301", of(n + 1, [](auto&) {}));
  expect_refusals("saved with k 16, but this reducer has k 15: load_all() takes", of(n, [](auto& o) { o.k = k + 1; }));
  expect_refusals("decay 0.5", of(n, [](auto& o) { o.decay = 0.5F; }));
  expect_refusals("saved with bucket 3, but this reducer has bucket 4", of(n, [](auto& o) { o.allreduce.bucket = 3; }),
                  {"oktopk"});
  expect_refusals("saved with tau 5", of(n, [](auto& o) { o.allreduce.tau = 5; }), {"oktopk"});
  expect_refusals("selector exact", of(n, [](auto& o) { o.selector = "exact"; }));
}

TEST(ReducerStates, load_of_another_kind_of_state_names_both_kinds) {
  expect_refusals("state: saved by a NodeReducer, but a Reducer loads it", [](Communicator& comm, Reducer&) {
    return NodeReducer(comm, n, preset_options("circulant", k), {.group = 2}).save();
  });
  expect_refusals("state: saved by a BucketedReducer, but a Reducer loads it", [](Communicator& comm, Reducer&) {
    return BucketedReducer(comm, std::vector<int>{100, 200}, preset_options("circulant", k)).save();
  });
  expect_refusals("state: saved by an optimiser, but a Reducer loads it",
                  [](Communicator&, Reducer& reducer) { return SparseSGD(reducer, {}).save(); });
  run_world("threads", 2, [](Communicator& comm) {
    Reducer reducer(comm, n, preset_options("circulant", k));
    SparseAdamW optimiser(reducer, {});
    EXPECT_EQ(message_of([&] { optimiser.load(reducer.save()); }),
              "rank 0: state: saved by a Reducer, but an optimiser loads it");
  });
}

TEST(ReducerStates, load_of_states_from_different_steps_is_refused) {
  expect_refusals("3 to 4", [](Communicator& comm, Reducer& reducer) {
    Reducer earlier(comm, n,
                    TestedMethod{std::string(state_of(reducer).allreduce->name()), ResidualKind::none}.options(k));
    for (std::uint64_t step = 0; step < 3; ++step) earlier.step(gradient_of(earlier, step));
    return comm.rank() == 1 ? earlier.save() : reducer.save();
  });
}

// A run of `steps` steps with one warm-up goes on with another: k of its next steps, or that it is refused.
struct Extension {
  DensitySchedule before, after;
  std::uint64_t steps;
  std::vector<std::size_t> next;  // empty: refused
};

const std::vector<Extension> kExtensions = {
    {{{4, 0.5}}, {{8, 0.5}}, 6, {k, k}},                            // over, where the other one is not
    {{{4, 0.5}}, {{2, 0.2}}, 6, {k, k}},                            // both are over
    {{}, {{8, 0.5}}, 6, {k, k}},                                    // none was asked for
    {{{4, 0.5}}, {}, 6, {k, k}},                                    // none is asked for
    {{{4, 0.5}}, {{8, 0.5}}, 3, {150, 150}},                        // the same so far
    {{{8, 0.5}}, {{4, 0.5}}, 3, {150, k}},                          // the same so far, and shorter
    {{{2, 1}, {9, 0.5}}, {{1, 1}, {1, 1}, {4, 0.5}}, 5, {150, k}},  // in other stages
    {{}, {{1, 0.5}}, 0, {150, k}},                                  // nothing was done
    {{{8, 0.5}}, {{4, 0.5}}, 6, {}},                                // it would have been over
    {{{8, 0.5}}, {}, 6, {}},
    {{{8, 0.5}}, {{8, 0.25}}, 1, {}},
};

TEST(ReducerStates, a_run_is_extended_where_its_warmup_is_over_or_the_same_so_far) {
  for (const Extension& e : kExtensions) {
    const auto options = [](const DensitySchedule& warmup) {
      ReducerOptions made = preset_options("circulant", k);
      made.warmup = warmup;
      return made;
    };
    const auto states = gather_world("threads", 2, [&](Communicator& comm) {
      Reducer reducer(comm, n, options(e.before));
      for (std::uint64_t step = 0; step < e.steps; ++step) reducer.step(gradient_of(reducer, step));
      return reducer.save();
    });
    for (const int P : {2, 3})
      run_world("threads", P, [&](Communicator& comm) {
        Reducer reducer(comm, n, options(e.after));
        const auto own = static_cast<std::size_t>(comm.rank());
        const std::string message = message_of([&] { P == 2 ? reducer.load(states[own]) : reducer.load_all(states); });
        EXPECT_EQ(message.find("total_steps") != std::string::npos, e.next.empty()) << message;
        for (const std::size_t entries : e.next) {
          reducer.step(gradient_of(reducer, reducer.steps()));
          EXPECT_EQ(reducer.metrics().k, entries) << "P = " << P << ", step " << reducer.steps();
          Reducer again(comm, n, options(e.after));  // keeps its place through another pause
          again.load(reducer.save());
          EXPECT_EQ(again.save(), reducer.save());
          EXPECT_EQ(state_of(again).density.entries(), state_of(reducer).density.entries());
        }
      });
  }
}

TEST(ReducerSnapshot, going_back_repeats_the_steps_bitwise) {
  for (const Preset& preset : presets())
    run_world("threads", 3, [&](Communicator& comm) {
      ReducerOptions options = preset_options(std::string(preset.name), 20);
      options.warmup = {{1, 1.0}, {2, 0.25}};
      options.decay = 0.5F;
      Reducer reducer(comm, n, only_used(options));
      const auto run = [&](std::uint64_t from, std::uint64_t to) {
        std::vector<float> applied(n, 0.0F);
        for (std::uint64_t step = from; step < to; ++step)
          reducer.step(make_input(Input::gaussian, n, comm.rank(), step, 1)).subtract_from(applied);
        return applied;
      };
      run(0, 2);
      ReducerSnapshot snapshot;
      state_of(reducer).copy_to(snapshot);
      const Bytes before = reducer.save();
      const auto once = run(2, 8);
      EXPECT_NE(reducer.save(), before);
      state_of(reducer).go_back(snapshot);
      EXPECT_EQ(reducer.steps(), 2u);
      EXPECT_EQ(reducer.save(), before) << preset.name;
      EXPECT_EQ(run(2, 8), once) << preset.name;
    });
}

}  // namespace
}  // namespace oktopk::reducer_state_test
