// SPDX-License-Identifier: Apache-2.0
// Training runs: the ranks stay equal, results repeat, and the numbers reported are those counted.
#include "tools/train/trainer.h"

#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "tests/support/message.h"
#include "tests/support/world.h"
#include "tests/train/small_problem.h"

namespace oktopk::trainer_test {
namespace {

TrainingRun run_on(int P, const TrainOptions& options) {
  return gather_world("threads", P, [&](Communicator& comm) { return train(comm, small_problem(), options); })[0];
}

class TrainerOfPreset : public testing::TestWithParam<std::string> {};

TEST_P(TrainerOfPreset, train_learns_and_keeps_the_ranks_equal) {
  TrainOptions options = small_run(GetParam(), 200);
  options.reducer.density = 0.2;
  const TrainingRun run = run_on(3, options);
  EXPECT_TRUE(run.ranks_agree);
  EXPECT_EQ(run.steps, 200u);
  EXPECT_LT(run.test_loss, 0.9 * run.curves.loss.front());
  EXPECT_EQ(run.curves.step.back(), 200);
  EXPECT_EQ(run.curves.step.size(), 10u);
  EXPECT_GT(run.wire_bytes, 0);
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.emplace_back(preset.name);
  return names;
}

std::string preset_name(const testing::TestParamInfo<std::string>& info) { return info.param; }

INSTANTIATE_TEST_SUITE_P(Presets, TrainerOfPreset, testing::ValuesIn(preset_names()), preset_name);

TEST(Trainer, train_with_every_optimiser_and_axis_keeps_the_ranks_equal) {
  for (const std::string optimiser : {"sgd", "momentum", "adam"})
    for (const std::string sparsify : {"gradients", "updates"})
      for (const std::string warmup : {"none", "dense:0.2", "dgc:0.5"}) {
        TrainOptions options = small_run("circulant");
        options.recipe.optimiser = optimiser;
        options.recipe.sparsify = sparsify;
        options.recipe.start = warmup;
        options.recipe.look_ahead = optimiser != "adam" || sparsify == "updates";
        EXPECT_TRUE(run_on(3, options).ranks_agree) << to_string(options.recipe);
      }
}

TEST(Trainer, train_repeats_by_seed) {
  const TrainOptions options = small_run("oktopk");
  TrainOptions other = options;
  other.seed = 2;
  EXPECT_EQ(run_on(2, options).weights, run_on(2, options).weights);
  EXPECT_NE(run_on(2, options).weights, run_on(2, other).weights);
}

TEST(Trainer, train_dense_moves_what_the_formula_says) {
  TrainOptions options = small_run("dense");
  options.reducer.nan_policy = NanPolicy::local;
  const TrainingRun run = run_on(4, options);
  EXPECT_NEAR(run.compression, 1, 0.1);
}

TEST(Trainer, observer_sees_every_recorded_point) {
  int calls = 0;
  run_world("threads", 2, [&](Communicator& comm) {
    train(comm, small_problem(), small_run("circulant"), [&](const Progress& p) {
      EXPECT_EQ(comm.rank(), 0);
      EXPECT_EQ(p.steps, 30u);
      ++calls;
    });
  });
  EXPECT_EQ(calls, 10);
}

TEST(Trainer, train_refuses_bad_options) {
  const auto refusal = [](auto change) {
    TrainOptions options = small_run("circulant");
    change(options);
    return message_of([&] { run_on(2, options); });
  };
  EXPECT_NE(refusal([](auto& o) { o.steps = 0; }).find("steps = 0"), std::string::npos);
  EXPECT_NE(refusal([](auto& o) { o.batch = 0; }).find("batch = 0"), std::string::npos);
  EXPECT_NE(refusal([](auto& o) { o.model = "tower"; }).find("tower"), std::string::npos);
}

}  // namespace
}  // namespace oktopk::trainer_test
