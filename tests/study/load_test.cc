// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tools/study/load.h"

#include "oktopk/base/error.h"
#include "tests/support/world.h"
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

std::vector<LoadRun> loads(int P, const std::vector<ReducerOptions>& cases) {
  const LoadOptions options{cases, {.data = "skewed", .n = 4000, .steps = 6}};
  return gather_world("threads", P, [&](Communicator& comm) { return measure_load(comm, options); })[0];
}

TEST(Load, equal_regions_are_uneven_and_votes_are_not) {
  const auto runs = loads(5, {{.preset = "topkdsa", .density = 0.05},
                              {.preset = "oktopk", .density = 0.05},
                              {.preset = "circulant", .density = 0.05}});
  ASSERT_EQ(runs.size(), 3U);
  EXPECT_GT(mean_of(runs[0].split), 3);
  EXPECT_LT(mean_of(runs[1].split), 1.5);
  EXPECT_LT(mean_of(runs[2].split), 1.5);
  for (const LoadRun& run : runs) {
    EXPECT_EQ(run.split.size(), 6U);
    EXPECT_GT(run.bytes, 0);
  }
}

TEST(Load, sees_when_shares_are_balanced) {
  ReducerOptions never{.preset = "oktopk", .density = 0.05};
  never.allreduce.balance_trigger = 1e9;
  ReducerOptions always = never;
  always.allreduce.balance_trigger = 1.001;
  const auto runs = loads(5, {never, always});
  EXPECT_EQ(runs[0].balanced, 0);
  EXPECT_GT(runs[1].balanced, 0.9);
  EXPECT_LT(mean_of(runs[1].share), 1.05);
  EXPECT_GT(mean_of(runs[0].share), mean_of(runs[1].share));
}

TEST(Load, needs_four_ranks) { EXPECT_THROW(loads(3, {{.preset = "oktopk", .density = 0.05}}), UsageError); }

TEST(Load, dealt_counts_give_tile_t_to_rank_t_mod_P) {
  const std::vector<Index> idx = {0, 255, 256, 511, 512, 768, 1024};
  EXPECT_EQ(dealt_counts(idx, 3), (std::vector<double>{3, 3, 1}));
  EXPECT_EQ(dealt_counts({}, 2), (std::vector<double>{0, 0}));
}

}  // namespace
}  // namespace oktopk::load_test
