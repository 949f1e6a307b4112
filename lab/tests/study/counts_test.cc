// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "lab/tests/study/small_task.h"

namespace oktopk::counts_test {
namespace {

Findings counts(const std::string& data) { return study_counts(small_task(3, 2000, 12, 0.05, data)); }

TEST(Counts, exact_selectors_give_k) {
  const Findings found = counts("rough");
  for (const char* name : {"exact", "quota"}) {
    const auto row = row_with(found, "selector", name);
    for (const char* value : {"mean", "p5", "p95", "max"}) EXPECT_EQ(row[value], 1) << name << ' ' << value;
    EXPECT_EQ(row["per_step"].get<Dense>(), Dense(12, 1.0));
  }
}

TEST(Counts, no_selection_exceeds_2k) {
  int selections = 0;
  for (const auto& row : counts("rough").rows) {
    if (!row.contains("selector")) continue;
    ++selections;
    EXPECT_LE(row["max"], 2) << row;
    for (const double count : row["per_step"].get<Dense>()) EXPECT_LE(count, 2) << row;
  }
  EXPECT_EQ(selections, static_cast<int>(selectors().size()));
}

TEST(Counts, the_first_quarter_is_in_the_curve_only) {
  const Findings found = counts("calm");
  const auto row = row_with(found, "preset", "oktopk");
  const Dense curve = row["per_step"];
  ASSERT_EQ(curve.size(), 12u);
  EXPECT_DOUBLE_EQ(row["max"], *std::max_element(curve.begin() + 3, curve.end()));
  ASSERT_EQ(found.tables.size(), 2u);
  EXPECT_EQ(found.tables[0].rows.size(), selectors().size());
  EXPECT_EQ(found.tables[1].rows.size(), 2u);
}

TEST(Counts, updates_of_circulant_never_exceed_k) {
  EXPECT_LE(row_with(counts("rough"), "preset", "circulant")["max"], 1);
}

}  // namespace
}  // namespace oktopk::counts_test
