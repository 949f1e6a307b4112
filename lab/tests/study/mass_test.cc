// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "lab/tests/study/small_task.h"
#include "tools/statistics.h"

namespace oktopk::mass_test {
namespace {

bool is_published_gtopk(const nlohmann::json& row) {
  return row["preset"] == "gtopk" && row["residual"] == "sender_keeps";
}

TEST(Mass, is_conserved_to_the_last_bit_but_by_the_published_rule_of_gtopk) {
  for (const int P : {1, 3, 5})
    for (const auto& row : study_mass(small_task(P, 600, 10, 0.05, "dyadic")).rows) {
      EXPECT_GT(row["brought"], 0);
      EXPECT_EQ(row["total"].size(), 10u);
      EXPECT_EQ(row["total"].back(), row["share"]);
      if (is_published_gtopk(row)) continue;
      EXPECT_EQ(row["lost"], 0) << row;
      EXPECT_EQ(row["share"], 0) << row;
      EXPECT_EQ(max_of(row["per_step"].get<Dense>()), 0) << row;
    }
}

TEST(Mass, is_lost_by_the_published_rule_of_gtopk) {
  int rows = 0;
  for (const auto& row : study_mass(small_task(5, 600, 10, 0.05, "dyadic")).rows) {
    if (!is_published_gtopk(row)) continue;
    ++rows;
    EXPECT_GT(row["share"], 0.001);
    EXPECT_GT(mean_of(row["per_step"].get<Dense>()), 0.001);
  }
  EXPECT_EQ(rows, 4);
}

TEST(Mass, survives_lossy_codecs_on_any_data) {
  for (const auto& row : study_mass(small_task(3, 600, 10, 0.05, "calm")).rows)
    EXPECT_TRUE(is_published_gtopk(row) || row["share"] < 1e-6) << row;
}

}  // namespace
}  // namespace oktopk::mass_test
