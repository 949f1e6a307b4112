// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "lab/tests/study/small_task.h"
#include "oktopk/base/error.h"
#include "tools/statistics.h"

namespace oktopk::load_test {
namespace {

TEST(Load, finds_split_and_share_among_exchanges) {
  // Votes, split, sizes (2), balancing with as many messages as the split, gather (2); P = 4.
  const std::vector<Exchange> exchanges = {
      {.messages_received = 1, .bytes_sent = 1, .bytes_received = 2},
      {.messages_received = 3, .bytes_sent = 70, .bytes_received = 100},
      {.messages_received = 1, .bytes_sent = 3, .bytes_received = 4},
      {.messages_received = 1, .bytes_sent = 3, .bytes_received = 4},
      {.messages_received = 3, .bytes_sent = 9, .bytes_received = 8},
      {.messages_received = 1, .bytes_sent = 50, .bytes_received = 60},
      {.messages_received = 1, .bytes_sent = 110, .bytes_received = 120},
  };
  const StepLoad load = load_of(exchanges, 4);
  EXPECT_EQ(load.split, 100);
  EXPECT_EQ(load.share, 50);
  EXPECT_EQ(load.total, 298);
  EXPECT_EQ(load.after_split, 5U);
}

double mean_of_case(const Findings& found, const std::string& name, const char* column) {
  return mean_of(row_with(found, "case", name)[column].get<Dense>());
}

TEST(Load, equal_regions_are_uneven_and_votes_are_not) {
  const Findings found = study_load(small_task(5, 4000, 6, 0.05, "skewed"));
  EXPECT_GT(mean_of_case(found, "topkdsa: equal regions", "split"), 3);
  EXPECT_LT(mean_of_case(found, "oktopk: one vote", "split"), 1.5);
  EXPECT_LT(mean_of_case(found, "circulant: recut on demand", "split"), 1.5);
  for (const auto& row : found.rows) {
    EXPECT_EQ(row["split"].size(), 6u);
    EXPECT_GT(row["bytes"], 0);
  }
}

TEST(Load, sees_when_shares_are_balanced) {
  const Findings found = study_load(small_task(5, 4000, 6, 0.05, "layered"));
  const std::string never = "oktopk: tau = 16", often = "oktopk: tau = 16, balance at 1.2";
  EXPECT_EQ(row_with(found, "case", never)["balanced"], 0);
  EXPECT_GT(row_with(found, "case", often)["balanced"], 0.5);
  EXPECT_LT(mean_of_case(found, often, "share"), 1.2);
  EXPECT_GT(mean_of_case(found, never, "share"), mean_of_case(found, often, "share"));
}

TEST(Load, needs_four_ranks) { EXPECT_THROW(study_load(small_task(3, 4000, 6, 0.05, "skewed")), UsageError); }

TEST(Load, dealt_counts_give_tile_t_to_rank_t_mod_P) {
  const std::vector<Index> idx = {0, 255, 256, 511, 512, 768, 1024};
  EXPECT_EQ(dealt_counts(idx, 3), (std::vector<double>{3, 3, 1}));
  EXPECT_EQ(dealt_counts({}, 2), (std::vector<double>{0, 0}));
}

}  // namespace
}  // namespace oktopk::load_test
