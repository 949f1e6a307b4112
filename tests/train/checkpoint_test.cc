// SPDX-License-Identifier: Apache-2.0
// Interrupted and resumed: bitwise the same weights; with another number of ranks training goes on.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "oktopk/base/error.h"
#include "tests/support/message.h"
#include "tests/support/world.h"
#include "tests/train/small_problem.h"
#include "tools/train/trainer.h"

namespace oktopk::checkpoint_test {
namespace {

namespace fs = std::filesystem;

class Checkpoint : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    dir_ = fs::temp_directory_path() / ("oktopk-checkpoint-" + std::string(info->name()) + std::to_string(getpid()));
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  TrainOptions interrupted(TrainOptions options, std::uint64_t after) const {
    options.checkpoint_dir = dir_.string();
    options.checkpoint_every = 10;
    options.stop_after = after;
    return options;
  }
  TrainOptions resumed(TrainOptions options) const {
    options.resume_dir = dir_.string();
    return options;
  }

  fs::path dir_;
};

TrainingRun run_on(int P, const TrainOptions& options) {
  return gather_world("threads", P, [&](Communicator& comm) { return train(comm, small_problem(), options); })[0];
}

TEST_F(Checkpoint, resume_continues_bitwise) {
  for (const std::string preset : {"dense", "oktopk", "circulant"})
    for (const std::string optimiser : {"sgd", "momentum", "adam"}) {
      TrainOptions options = small_run(preset, 40);
      options.recipe.optimiser = optimiser;
      const TrainingRun whole = run_on(3, options);
      run_on(3, interrupted(options, 17));
      const TrainingRun rest = run_on(3, resumed(options));
      EXPECT_EQ(rest.weights, whole.weights) << preset << ", " << optimiser;
      EXPECT_EQ(rest.curves.step, whole.curves.step);
      EXPECT_EQ(rest.curves.loss.back(), whole.curves.loss.back());
      fs::remove_all(dir_);
    }
}

TEST_F(Checkpoint, save_leaves_one_complete_file_however_often_it_is_called) {
  const TrainOptions options = small_run("circulant", 40);
  run_on(2, interrupted(options, 35));
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir_)) names.push_back(entry.path().filename().string());
  EXPECT_EQ(names, std::vector<std::string>{"circulant.state"});
  // As if killed while the next one was being written.
  std::ofstream(dir_ / "circulant.state.new") << "half";
  EXPECT_EQ(run_on(2, resumed(options)).weights, run_on(2, options).weights);
}

TEST_F(Checkpoint, resume_with_another_number_of_ranks_goes_on) {
  for (const std::string optimiser : {"momentum", "adam"})
    for (const std::string sparsify : {"gradients", "updates"})
      for (const int P : {1, 2, 5}) {
        TrainOptions options = small_run("circulant", 120);
        options.recipe.optimiser = optimiser;
        options.recipe.sparsify = sparsify;
        const TrainingRun first = run_on(3, interrupted(options, 60));
        const TrainingRun rest = run_on(P, resumed(options));
        EXPECT_TRUE(rest.ranks_agree);
        EXPECT_EQ(rest.steps, 120u);
        // To the middle the curve is that of the run on three ranks, and then it goes on.
        const std::vector<double>& loss = rest.curves.loss;
        ASSERT_EQ(loss.size(), 10u);
        EXPECT_EQ(std::vector<double>(loss.begin(), loss.begin() + 5), first.curves.loss);
        // One that lost its state would end far above where it was.
        EXPECT_LT(rest.test_loss, first.test_loss * 1.2);
        fs::remove_all(dir_);
      }
}

// No step is left, so nothing differs but the order of the sums that share out what is unsent,
// which the flush applies.
TEST_F(Checkpoint, resume_after_the_last_step_ends_as_the_run_did_on_any_number_of_ranks) {
  for (const std::string optimiser : {"momentum", "adam"})
    for (const std::string sparsify : {"gradients", "updates"})
      for (const bool flush : {false, true}) {
        TrainOptions options = small_run("circulant", 40);
        options.recipe.optimiser = optimiser;
        options.recipe.sparsify = sparsify;
        options.recipe.flush = flush;
        const TrainingRun whole = run_on(3, interrupted(options, 40));
        for (const int P : {1, 2, 5}) {
          const TrainingRun same = run_on(P, resumed(options));
          EXPECT_NEAR(same.test_loss, whole.test_loss, 1e-5) << optimiser << ", P = " << P;
          if (!flush) {
            EXPECT_EQ(same.weights, whole.weights) << optimiser << ", P = " << P;
          }
        }
        fs::remove_all(dir_);
      }
}

TEST_F(Checkpoint, resume_from_a_damaged_or_missing_file_is_a_clear_error_on_every_rank) {
  const TrainOptions options = small_run("circulant", 40);
  const auto refusal = [&](const TrainOptions& o) {
    return gather_world("threads", 2,
                        [&](Communicator& comm) { return message_of([&] { train(comm, small_problem(), o); }); });
  };
  for (const std::string& text : refusal(resumed(options)))
    EXPECT_NE(text.find("nothing to resume"), std::string::npos) << text;
  run_on(2, interrupted(options, 20));
  TrainOptions other = options;
  other.seed = 9;
  for (const std::string& text : refusal(resumed(other)))
    EXPECT_NE(text.find("of another run"), std::string::npos) << text;
  std::fstream file(dir_ / "circulant.state", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(500);
  file.put('\x55');
  file.close();
  for (const std::string& text : refusal(resumed(options))) EXPECT_NE(text.find("state"), std::string::npos) << text;
}

}  // namespace
}  // namespace oktopk::checkpoint_test
