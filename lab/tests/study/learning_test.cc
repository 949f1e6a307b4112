// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>

#include "lab/study/study.h"
#include "lab/tests/study/small_task.h"
#include "oktopk/base/error.h"

namespace oktopk::learning_test {
namespace {

StudyTask task_for(const std::string& optimiser) { return small_task(2, 600, 20, 0.05, optimiser); }

TEST(Learning, rows_vary_every_axis_and_start_with_dense) {
  for (const std::string optimiser : {"sgd", "momentum", "adam"}) {
    StudyTask task = task_for(optimiser);
    task.seeds = 1;
    const auto rows = study_learning(task).rows;
    EXPECT_EQ(rows[0]["preset"], "dense");
    std::set<std::string> residuals, warmups;
    std::set<bool> ahead, flush;
    for (const auto& row : rows) {
      EXPECT_EQ(row["recipe"]["optimiser"], optimiser);
      residuals.insert(row["residual"]);
      warmups.insert(row["recipe"]["start"]);
      ahead.insert(row["recipe"]["look_ahead"].get<bool>());
      flush.insert(row["recipe"]["flush"].get<bool>());
    }
    EXPECT_TRUE(residuals.contains("owner_memory") && residuals.contains("sender_keeps"));
    EXPECT_EQ(warmups.size(), 4u);
    EXPECT_EQ(ahead.size(), 2u);
    EXPECT_EQ(flush.size(), 2u);
  }
}

TEST(Learning, each_row_is_compared_with_dense_of_its_seed) {
  const auto rows = study_learning(task_for("sgd")).rows;
  EXPECT_EQ(rows[0]["gaps"].get<Dense>(), Dense(2, 0.0));
  EXPECT_EQ(rows[0]["equal_bytes_steps"], 20);
  for (const std::size_t r : {1, 2}) {
    EXPECT_EQ(rows[r]["losses"].size(), 2u);
    EXPECT_LT(rows[r]["bytes"], rows[0]["bytes"]);
    EXPECT_LT(rows[r]["equal_bytes_steps"], 20);
    for (const std::size_t s : {0, 1})
      EXPECT_NEAR(rows[r]["losses"][s].get<double>() / rows[0]["losses"][s].get<double>() - 1, rows[r]["gaps"][s],
                  1e-9);
  }
}

TEST(SmallTraining, takes_the_largest_network_that_fits) {
  EXPECT_EQ(small_training(50826, {.train = 1, .test = 1}).model, "mlp:256,128");
  EXPECT_EQ(small_training(50825, {.train = 1, .test = 1}).model, "mlp:254,127");
  EXPECT_THROW(small_training(100, {.train = 1, .test = 1}), UsageError);
}

}  // namespace
}  // namespace oktopk::learning_test
