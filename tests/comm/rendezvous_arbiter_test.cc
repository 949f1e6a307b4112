// SPDX-License-Identifier: Apache-2.0
// The choice of the next epoch: no sockets, and a clock that the test sets.
#include "oktopk/comm/rendezvous_arbiter.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "oktopk/base/error.h"

namespace oktopk::rendezvous_arbiter_test {
namespace {

using namespace std::chrono_literals;
using Ids = std::vector<MemberId>;

class Arbiters : public testing::Test {
 protected:
  // Three members in epoch 1.
  void begin() {
    for (int i = 0; i < 3; ++i) arbiter.join(3);
    ASSERT_TRUE(arbiter.decide(now).has_value());
  }

  Arbiter arbiter{10s};
  Arbiter::Time now{};
};

TEST_F(Arbiters, first_epoch_begins_when_enough_have_joined) {
  arbiter.join(3);
  arbiter.join(3);
  EXPECT_FALSE(arbiter.decide(now).has_value());
  arbiter.join(2);
  const auto first = arbiter.decide(now);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->epoch, 1u);
  EXPECT_EQ(first->ids, (Ids{1, 2, 3}));
  EXPECT_EQ(first->joined, first->ids);
  EXPECT_FALSE(arbiter.decide(now).has_value());
}

TEST_F(Arbiters, candidate_that_is_lost_does_not_count) {
  arbiter.join(2);
  arbiter.lose(1);
  arbiter.join(2);
  EXPECT_FALSE(arbiter.decide(now).has_value());
}

TEST_F(Arbiters, survivors_go_on_with_the_most_committed_steps) {
  begin();
  EXPECT_TRUE(arbiter.report(1, 7, now));
  EXPECT_FALSE(arbiter.decide(now).has_value());
  arbiter.lose(2);
  EXPECT_TRUE(arbiter.report(3, 8, now));
  const auto next = arbiter.decide(now);
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->ids, (Ids{1, 3}));
  EXPECT_EQ(next->lost, (Ids{2}));
  EXPECT_EQ(next->committed, 8u);
}

TEST_F(Arbiters, silent_member_is_given_up_after_the_grace_and_refused_later) {
  begin();
  arbiter.report(1, 5, now);
  arbiter.report(3, 5, now + 1s);
  EXPECT_FALSE(arbiter.decide(now + 9s).has_value());
  const auto next = arbiter.decide(now + 10s);
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->lost, (Ids{2}));
  EXPECT_FALSE(arbiter.report(2, 6, now + 11s));
  EXPECT_FALSE(arbiter.report(99, 6, now));
}

TEST_F(Arbiters, joiners_come_in_at_the_next_epoch_under_new_ids) {
  begin();
  arbiter.join(1);
  EXPECT_EQ(arbiter.candidates(), 1u);
  EXPECT_FALSE(arbiter.decide(now).has_value()) << "nobody has reported";
  for (const MemberId id : {1, 2, 3}) arbiter.report(id, 4, now);
  const auto next = arbiter.decide(now);
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->joined, (Ids{4}));
  EXPECT_EQ(next->ids, (Ids{1, 2, 3, 4}));
  EXPECT_EQ(arbiter.candidates(), 0u);
}

TEST_F(Arbiters, job_begins_anew_when_all_are_lost) {
  begin();
  for (const MemberId id : {1, 2, 3}) arbiter.lose(id);
  for (int i = 0; i < 3; ++i) arbiter.join(3);
  const auto next = arbiter.decide(now);
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->ids, (Ids{4, 5, 6}));
  EXPECT_EQ(next->lost, (Ids{1, 2, 3}));
}

TEST(Membership, text_is_read_as_it_was_written) {
  const Membership one{.epoch = 3, .ids = {1, 4}, .lost = {2, 3}, .joined = {4}, .committed = 17};
  const Membership two = read_membership(write_membership(one));
  EXPECT_EQ(two.epoch, 3u);
  EXPECT_EQ(two.ids, one.ids);
  EXPECT_EQ(two.lost, one.lost);
  EXPECT_EQ(two.joined, one.joined);
  EXPECT_EQ(two.committed, 17u);
  for (const char* text : {"", "1", "1 2 99999999 1", "1 2 1 x", "1 2 0 0 0"})
    EXPECT_THROW(read_membership(text), CommError) << text;
}

}  // namespace
}  // namespace oktopk::rendezvous_arbiter_test
