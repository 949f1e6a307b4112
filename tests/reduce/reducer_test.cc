// SPDX-License-Identifier: Apache-2.0
// The Reducer: its k, what it refuses, and that nothing is ever lost: gradients brought once are
// applied in full if one only goes on stepping.
#include "oktopk/reduce/reducer.h"

#include <gtest/gtest.h>

#include <limits>

#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/reducer_state.h"
#include "tests/support/message.h"
#include "tests/support/training.h"

namespace oktopk::reducer_test {
namespace {

std::size_t k_of(Index n, double density) {
  std::size_t k = 0;
  run_world("threads", 1, [&](Communicator& comm) {
    ReducerOptions options;
    options.density = density;
    k = Reducer(comm, n, options).k();
  });
  return k;
}

TEST(Reducer, k_follows_from_the_density_and_is_at_least_one) {
  EXPECT_EQ(k_of(1000, 0.01), 10u);
  EXPECT_EQ(k_of(1000, 1), 1000u);
  EXPECT_EQ(k_of(1049, 0.01), 10u);
  EXPECT_EQ(k_of(1051, 0.01), 11u);
  EXPECT_EQ(k_of(5, 0.01), 1u);
  EXPECT_EQ(k_of(0, 0.01), 0u);
}

TEST(Reducer, construction_with_bad_options_says_which) {
  run_world("threads", 1, [](Communicator& comm) {
    const auto refusal = [&](auto change) {
      ReducerOptions options{.preset = "circulant"};
      change(options);
      return message_of([&] { Reducer(comm, 100, options); });
    };
    const auto expect = [](const std::string& message, const std::string& part) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    };
    expect(refusal([](auto& o) { o.k = 101; }), "k = 101");
    expect(refusal([](auto& o) { o.density = 0; }), "density = 0");
    expect(refusal([](auto& o) { o.density = 1.5; }), "density = 1.5");
    expect(refusal([](auto& o) { o.density = -1; }), "density = -1");
    expect(refusal([](auto& o) { o.density = std::numeric_limits<double>::quiet_NaN(); }), "density");
    expect(refusal([](auto& o) { o.preset = "best"; }), "'best'");
    expect(refusal([](auto& o) { o.allreduce.residual = ResidualKind::holder_keeps; }), "holder_keeps");
    expect(refusal([](auto& o) { o.allreduce.skips = "nonsense"; }), "nonsense");
    expect(refusal([](auto& o) {
             o.selector = "reused";
             o.allreduce.tau_prime = 0;
           }),
           "tau'");
    for (const float decay : {0.0F, -1.0F, 1.5F, std::numeric_limits<float>::quiet_NaN()})
      expect(refusal([&](auto& o) { o.decay = decay; }), "decay = ");
    expect(refusal([](auto& o) { o.warmup = {{3, 0}}; }), "warm-up");
    EXPECT_EQ(to_string(find_nan_policy("skip")), "skip");
    expect(message_of([] { find_nan_policy("ignore"); }), "local");
  });
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.emplace_back(preset.name);
  return names;
}

TEST(Reducer, step_and_flush_of_nothing_work) {
  std::vector<std::string> names = preset_names();
  names.emplace_back("auto");
  for (const std::string& name : names)
    run_world("threads", 3, [&](Communicator& comm) {
      const ReducerOptions options{.preset = name};
      Reducer reducer(comm, 0, options);
      for (int step = 0; step < 3; ++step) EXPECT_EQ(reducer.step({}).size(), 0u);
      EXPECT_EQ(reducer.flush().size(), 0u);
      Reducer resumed(comm, 0, options);
      resumed.load(reducer.save());
      EXPECT_EQ(resumed.step({}).size(), 0u);
      EXPECT_EQ(resumed.steps(), 4u);
      Reducer unused(comm, 10, options);
      for (const float mean : unused.flush().dense) EXPECT_EQ(mean, 0);
      EXPECT_EQ(unused.steps(), 0u);
    });
}

class ReducerOfPreset : public testing::TestWithParam<std::string> {};

// Gradients in step 0, none afterwards: in every step, what was applied so far + residuals + owner
// memory is what was brought; and in the end all of it is applied.
TEST_P(ReducerOfPreset, steps_without_gradients_drain_everything) {
  constexpr Index n = 300;
  for (const int P : {1, 3, 4})
    for (const ResidualKind rule : find_preset(GetParam()).residuals) {
      // Known to lose mass: see the laws.
      if (GetParam() == "gtopk" && rule == ResidualKind::sender_keeps) continue;
      run_world("threads", P, [&](Communicator& comm) {
        ReducerOptions options = preset_options(GetParam(), 20);
        options.allreduce.residual = rule;
        options.allreduce.tau_prime = 4;
        CountingCommunicator counting(comm);
        Reducer reducer(counting, n, only_used(options));
        const auto gradient = make_input(Input::dyadic, n, comm.rank(), 0, 1);
        const Dense brought = add_up(gather_dense(comm, Dense(gradient.begin(), gradient.end())));
        Dense applied(n, 0.0);
        for (int step = 0; step < 250; ++step) {
          const Witness w = witness_step(comm, counting, reducer,
                                         step == 0 ? std::span<const float>(gradient) : std::span<const float>());
          Dense total = add_up(w.residuals);
          for (std::size_t i = 0; i < n; ++i) {
            applied[i] += w.sum[i];
            total[i] += applied[i] + w.memory_after[i];
          }
          ASSERT_EQ(total, brought) << "step " << step << ", P = " << P;
          if (applied == brought) break;
        }
        EXPECT_EQ(applied, brought) << "P = " << P << ", " << to_string(rule);
      });
    }
}

// Found in the middle of a step, so that nobody can go on; but nobody waits for the timeout either.
TEST_P(ReducerOfPreset, step_whose_accumulator_overflows_ends_on_every_rank) {
  for (const bool dense : {false, true})
    run_world("threads", 3, [&](Communicator& comm) {
      ReducerOptions options = preset_options(GetParam(), 10);
      if (dense) options.warmup = dense_warmup(9);
      Reducer reducer(comm, 100, only_used(options));
      std::vector<float> gradient(100, 1.0F);
      reducer.step(gradient);
      if (comm.rank() == 1) gradient[42] = 3e38F;
      const auto step = [&] { reducer.step(gradient, 2); };
      if (comm.rank() == 1)
        EXPECT_NE(message_of(step).find("42"), std::string::npos);
      else
        EXPECT_THROW(step(), CommError);
    });
}

std::string preset_name(const testing::TestParamInfo<std::string>& info) { return info.param; }

INSTANTIATE_TEST_SUITE_P(Presets, ReducerOfPreset, testing::ValuesIn(preset_names()), preset_name);

}  // namespace
}  // namespace oktopk::reducer_test
