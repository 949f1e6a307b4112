// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "lab/tests/study/small_task.h"

namespace oktopk::fill_in_test {
namespace {

TEST(FillIn, unions_by_hand) {
  // Ranks 0 and 2 agree, as do 1 and 3; halving joins them first.
  const auto sizes = union_sizes({{1, 2}, {3, 4}, {1, 2}, {3, 5}}, 2);
  ASSERT_EQ(sizes.size(), 3U);
  EXPECT_EQ(sizes[0].per_k, 1);
  EXPECT_EQ(sizes[1].m, 2);
  EXPECT_DOUBLE_EQ(sizes[1].per_k, (2 + 3) / 2.0 / 2);
  EXPECT_EQ(sizes[2].m, 4);
  EXPECT_DOUBLE_EQ(sizes[2].per_k, 2.5);
}

TEST(FillIn, disjoint_supports_add_up) {
  const auto sizes = union_sizes({{1}, {2}, {3}}, 1);
  ASSERT_EQ(sizes.size(), 3u);
  EXPECT_EQ(sizes[1].m, 2);
  EXPECT_EQ(sizes.back().m, 3);
  EXPECT_DOUBLE_EQ(sizes.back().per_k, 3);
}

TEST(FillIn, independent_union_counts_collisions) {
  EXPECT_DOUBLE_EQ(independent_union(100, 10, 1), 1);
  EXPECT_DOUBLE_EQ(independent_union(100, 10, 2), 1.9);
  EXPECT_NEAR(independent_union(100, 10, 1000), 10, 1e-9);
}

nlohmann::json fill_in(const std::string& data, int P) {
  return study_fill_in(small_task(P, 2000, 2, 0.02, data)).rows[0];
}

TEST(FillIn, union_grows_with_independent_supports_only) {
  for (const int P : {3, 8}) {
    const auto same = fill_in("identical", P)["unions"].back();
    EXPECT_EQ(same["m"], P);
    EXPECT_EQ(same["per_k"], 1);
    EXPECT_EQ(same["exponent"], 0);
    const auto other = fill_in("gaussian", P)["unions"].back();
    EXPECT_NEAR(other["per_k"], independent_union(2000, 40, P), 0.05 * P);
  }
}

TEST(FillIn, only_union_presets_exceed_k) {
  const auto row = fill_in("gaussian", 5);
  const auto& updates = row["update_per_k"];
  EXPECT_GT(updates["topka"], 4);
  EXPECT_EQ(updates["topka"], updates["topkdsa"]);
  EXPECT_DOUBLE_EQ(updates["topka"], row["unions"].back()["per_k"]);
  for (const char* preset : {"gtopk", "circulant", "spardl"}) EXPECT_LE(updates[preset], 1);
}

TEST(FillIn, table_shows_the_updates) {
  const Findings found = study_fill_in(small_task(3, 2000, 2, 0.02, "identical"));
  ASSERT_EQ(found.tables.size(), 2u);
  EXPECT_EQ(found.tables[0].head[2], "topka");
  EXPECT_EQ(found.tables[0].rows[0][2], "1.00");
  EXPECT_EQ(found.tables[1].rows.size(), 3u);
}

}  // namespace
}  // namespace oktopk::fill_in_test
