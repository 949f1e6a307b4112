// SPDX-License-Identifier: Apache-2.0
// A Reducer that goes back is bitwise the one that never made the steps.
#include <gtest/gtest.h>

#include "tests/support/runs.h"

namespace oktopk::reducer_snapshot_test {
namespace {

TEST(ReducerSnapshot, going_back_repeats_the_steps_bitwise) {
  constexpr Index n = 300;
  for (const Preset& preset : presets())
    run_world("threads", 3, [&](Communicator& comm) {
      ReducerOptions options = preset_options(std::string(preset.name), 20);
      options.warmup = {{1, 1.0}, {2, 0.25}};
      options.decay = 0.5F;
      Reducer reducer(comm, n, options);
      const auto run = [&](std::uint64_t from, std::uint64_t to) {
        std::vector<float> applied(n, 0.0F);
        for (std::uint64_t step = from; step < to; ++step)
          reducer.step(make_input(Input::gaussian, n, comm.rank(), step, 1)).subtract_from(applied);
        return applied;
      };
      run(0, 2);
      Reducer::Snapshot snapshot;
      reducer.copy_to(snapshot);
      const Bytes before = reducer.save();
      const auto once = run(2, 8);
      EXPECT_NE(reducer.save(), before);
      reducer.go_back(snapshot);
      EXPECT_EQ(reducer.steps(), 2u);
      EXPECT_EQ(reducer.save(), before) << preset.name;
      EXPECT_EQ(run(2, 8), once) << preset.name;
    });
}

}  // namespace
}  // namespace oktopk::reducer_snapshot_test
