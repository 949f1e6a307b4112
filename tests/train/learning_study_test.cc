// SPDX-License-Identifier: Apache-2.0
#include "tools/train/learning_study.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/world.h"
#include "tests/train/small_problem.h"
#include "tools/statistics.h"

namespace oktopk::learning_study_test {
namespace {

TEST(LearningStudy, mean_and_deviation_of_samples) {
  EXPECT_EQ(mean_of(std::vector<double>{1, 2, 6}), 3);
  EXPECT_NEAR(deviation_of(std::vector<double>{1, 2, 6}), std::sqrt(7.0), 1e-12);
  EXPECT_EQ(deviation_of(std::vector<double>{4}), 0);
  EXPECT_EQ(mean_of({}), 0);
}

TEST(LearningStudy, rows_vary_every_axis_and_start_with_dense) {
  for (const std::string optimiser : {"sgd", "momentum", "adam"}) {
    const auto rows = study_rows(optimiser, small_run("circulant"));
    EXPECT_EQ(rows.front().reducer.preset, "dense");
    bool owner = false, sender = false, warm = false, cold = false, ahead = false, flush = false;
    for (const StudyRow& row : rows) {
      EXPECT_EQ(row.recipe.optimiser, optimiser);
      owner |= row.reducer.allreduce.residual == ResidualKind::owner_memory;
      sender |= row.reducer.allreduce.residual == ResidualKind::sender_keeps;
      warm |= row.recipe.warmup != "none";
      cold |= row.recipe.warmup == "none";
      ahead |= row.recipe.look_ahead;
      flush |= row.recipe.flush != rows.front().recipe.flush;
    }
    EXPECT_TRUE(owner && sender && warm && cold && ahead && flush);
  }
}

TEST(LearningStudy, density_rows_pair_fixed_densities_with_budgets) {
  const auto rows = density_rows("momentum", small_run("circulant"));
  EXPECT_EQ(rows.front().reducer.preset, "dense");
  std::vector<double> fixed, budgets;
  for (const StudyRow& row : rows) {
    const AdaptiveDensityOptions& adaptive = row.reducer.adaptive;
    EXPECT_EQ(row.recipe.optimiser, "momentum");
    EXPECT_NO_THROW(describe(adaptive));
    if (row.reducer.preset == "dense") continue;
    if (adaptive.target_share == 0) fixed.push_back(row.reducer.density);
    if (adaptive.budget > 0) budgets.push_back(adaptive.budget);
  }
  EXPECT_EQ(fixed.size(), 5u);
  EXPECT_EQ(fixed, budgets);
}

// Rows with an adaptive density are compared with dense, too, which has none.
TEST(LearningStudy, run_study_of_densities_compares_with_dense) {
  LearningStudy study{.P = 2, .seeds = 2, .base = small_run("circulant")};
  study.rows = density_rows("sgd", study.base);
  study.rows.resize(3);
  run_world("threads", 2, [&](Communicator& comm) {
    LearningStudy mine = study;
    run_study(comm, small_problem(), mine, {});
    if (comm.rank() == 0) study = mine;
  });
  EXPECT_EQ(study.rows[0].gaps, (std::vector<double>{0, 0}));
  for (const std::size_t r : {1, 2}) {
    EXPECT_EQ(study.rows[r].gaps.size(), 2u);
    EXPECT_LT(study.rows[r].bytes, study.rows[0].bytes);
  }
}

TEST(LearningStudy, run_study_compares_each_row_with_dense_of_its_seed) {
  LearningStudy study{.P = 2, .seeds = 2, .base = small_run("circulant")};
  study.rows = study_rows("sgd", study.base);
  study.rows.resize(3);
  int lines = 0;
  run_world("threads", 2, [&](Communicator& comm) {
    LearningStudy mine = study;
    run_study(comm, small_problem(), mine, [&](const StudyRow&) { ++lines; });
    if (comm.rank() == 0) study = mine;
  });
  EXPECT_EQ(lines, 3);
  EXPECT_EQ(study.rows[0].gaps, (std::vector<double>{0, 0}));
  EXPECT_EQ(study.rows[0].equal_bytes_steps, 30);
  EXPECT_EQ(study.rows[1].losses.size(), 2u);
  EXPECT_LT(study.rows[1].bytes, study.rows[0].bytes);
  EXPECT_LT(study.rows[1].equal_bytes_steps, 30);
  EXPECT_NEAR(study.rows[1].losses[0] / study.rows[0].losses[0] - 1, study.rows[1].gaps[0], 1e-9);
}

}  // namespace
}  // namespace oktopk::learning_study_test
