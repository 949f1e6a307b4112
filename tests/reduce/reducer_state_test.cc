// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/reducer_state.h"

#include <gtest/gtest.h>

#include "oktopk/optim/optimiser.h"
#include "oktopk/reduce/reducer_options.h"
#include "tests/support/message.h"
#include "tests/support/runs.h"
#include "tests/support/training.h"

namespace oktopk::reducer_state_test {
namespace {

constexpr Index n = 300;
constexpr std::size_t k = 15;

TEST(ReducerStates, load_of_an_optimiser_names_both_kinds) {
  run_world("threads", 2, [](Communicator& comm) {
    Reducer reducer(comm, n, preset_options("circulant", k));
    SparseAdamW optimiser(reducer, {});
    EXPECT_EQ(message_of([&] { optimiser.load(reducer.save()); }),
              "rank 0: state: saved by a Reducer, but an optimiser loads it");
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
      options.adaptive = {.target_share = 0.9, .budget = 0.08, .interval = 2};
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

TEST(ReducerSnapshot, of_a_failed_step_is_no_better) {
  run_world("threads", 2, [](Communicator& comm) {
    Reducer reducer(comm, n, preset_options("topka", k));
    std::vector<float> gradient(n, 0.0F);
    gradient[7] = 2e38F;
    EXPECT_THROW(reducer.step(gradient), SumOverflow);
    ReducerSnapshot snapshot;
    state_of(reducer).copy_to(snapshot);
    reducer.forget();
    reducer.step(gradient_of(reducer, 0));
    state_of(reducer).go_back(snapshot);
    EXPECT_THROW(reducer.step({}), CommError);
  });
}

}  // namespace
}  // namespace oktopk::reducer_state_test
