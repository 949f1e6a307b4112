// SPDX-License-Identifier: Apache-2.0
#include "oktopk/elastic/change.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/world.h"

namespace oktopk::elastic_change_test {
namespace {

using Ids = std::vector<MemberId>;

TEST(ElasticChange, statements_arrive_as_they_were_made) {
  for (const int P : {1, 2, 5}) {
    run_world("threads", P, [&](Communicator& comm) {
      Statement mine{.actions = static_cast<std::uint64_t>(comm.rank()), .is_parting = comm.rank() == 1, .mirrored = 9};
      mine.measure = {4, 0.5, -2, 3, 1e300, 7, 8};
      mine.region_end = 11;
      mine.received.assign(static_cast<std::size_t>(comm.rank()), 40);
      const std::vector<Statement> all = exchange_statements(comm, mine);
      ASSERT_EQ(all.size(), static_cast<std::size_t>(P));
      for (std::size_t r = 0; r < all.size(); ++r) {
        EXPECT_EQ(all[r].actions, r);
        EXPECT_EQ(all[r].is_parting, r == 1);
        EXPECT_EQ(all[r].measure, mine.measure);
        EXPECT_EQ(all[r].mirrored, 9U);
        EXPECT_EQ(all[r].region_end, 11U);
        EXPECT_EQ(all[r].received.size(), r);
      }
      EXPECT_EQ(is_received(all, 40), P > 1);
      EXPECT_FALSE(is_received(all, 41));
    });
  }
}

// Members 2, 4, 5, 7 and 9; each one's memory is copied by the next.
class Changes : public testing::Test {
 protected:
  MembershipChange describe(const Ids& ids) {
    statements.resize(ids.size());
    for (std::size_t r = 0; r < ids.size(); ++r) statements[r].region_end = 100 + ids[r];
    return describe_change({.epoch = 3, .step = 6, .P = static_cast<int>(ids.size())}, base, ids, statements);
  }
  MemberBase base{.epoch = 1,
                  .ids = {2, 4, 5, 7, 9},
                  .measures = std::vector<UnsentMeasure>(5, {.step = 5, .residual_sum = 1.5, .region_end = 50}),
                  .has_memory = true,
                  .has_mirrors = true};
  std::vector<Statement> statements;
};

TEST_F(Changes, memory_is_recovered_by_the_next_member_around_the_end) {
  const MembershipChange change = describe({2, 4, 7, 11});
  EXPECT_EQ(change.lost, (Ids{5, 9}));
  EXPECT_EQ(change.joined, (Ids{11}));
  ASSERT_EQ(change.losses.size(), 2U);
  EXPECT_EQ(change.losses[0].memory, MemoryFate::recovered);
  EXPECT_EQ(change.losses[0].heir, 7U);
  EXPECT_EQ(change.losses[0].region_end, 107U);
  EXPECT_EQ(change.losses[1].heir, 2U);
  EXPECT_EQ(change.losses[1].unsent.residual_sum, 1.5);
}

TEST_F(Changes, memory_is_lost_with_its_holder) {
  const MembershipChange change = describe({2, 7, 9});
  ASSERT_EQ(change.losses.size(), 2U);
  EXPECT_EQ(change.losses[0].id, 4U);
  EXPECT_EQ(change.losses[0].memory, MemoryFate::lost);
  EXPECT_EQ(change.losses[0].region_end, 50U);
  EXPECT_EQ(change.losses[1].memory, MemoryFate::recovered);
  EXPECT_EQ(change.losses[1].heir, 7U);
}

TEST_F(Changes, member_that_left_is_no_loss) {
  statements.resize(4);
  statements[1].received = {4};
  const MembershipChange change = describe({2, 5, 7, 9});
  EXPECT_EQ(change.left, (Ids{4}));
  EXPECT_TRUE(change.lost.empty());
  EXPECT_TRUE(change.losses.empty());
}

TEST_F(Changes, without_mirrors_or_memory_nothing_is_recovered) {
  base.has_mirrors = false;
  EXPECT_EQ(describe({2}).losses.at(0).memory, MemoryFate::lost);
  base.has_memory = false;
  EXPECT_EQ(describe({2}).losses.at(3).memory, MemoryFate::none);
}

TEST(Handover, gives_all_values_to_one_rank_in_pieces) {
  for (const std::size_t n : {std::size_t{0}, std::size_t{5}, kPieceBytes / 2 + 3}) {
    run_world("threads", 3, [&](Communicator& comm) {
      std::vector<float> values(comm.rank() == 1 ? 0 : n, -1.0F);
      if (comm.rank() == 2) std::iota(values.begin(), values.end(), 0.0F);
      hand_over(comm, {.from = 2, .to = 0}, values, n);
      std::vector<float> expected(comm.rank() == 1 ? 0 : n);
      std::iota(expected.begin(), expected.end(), 0.0F);
      EXPECT_EQ(values, expected);
    });
  }
}

}  // namespace
}  // namespace oktopk::elastic_change_test
