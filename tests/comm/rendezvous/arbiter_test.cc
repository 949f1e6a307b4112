// SPDX-License-Identifier: Apache-2.0
// The choice of the next epoch: no sockets, and a clock that the test sets.
#include "oktopk/comm/rendezvous/arbiter.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "oktopk/base/error.h"
#include "tests/support/message.h"

namespace oktopk::rendezvous_arbiter_test {
namespace {

using namespace std::chrono_literals;
using enum ArbiterAnswer::Kind;
using Ids = std::vector<MemberId>;

class Arbiters : public testing::Test {
 protected:
  Arbiter make(const ArbiterState& state = {}) {
    return {{.grace = 10s,
             .reattach = 2s,
             .settle = 1s,
             .random = [this] { return ++runs; },
             .log = [this](const std::string& text) { said += text + "\n"; }},
            now,
            state};
  }

  // A candidate, under a token of its own.
  MemberSide candidate(std::uint64_t least) {
    MemberSide side({.token = 100 + ++tokens, .least = least});
    side.want_epoch(0);
    return side;
  }
  ArbiterAnswer::Kind say(MemberSide& side) {
    const ArbiterAnswer answer = arbiter.hear(side.word(), now);
    side.hear(side.word(), answer, now);
    return answer.kind;
  }
  void expect_epoch(const Ids& ids, const Ids& lost = {}) {
    ASSERT_TRUE(arbiter.decide(now));
    EXPECT_EQ(arbiter.present().ids, ids);
    EXPECT_EQ(arbiter.present().lost, lost);
  }
  // All of them ask for the next epoch.
  void ask_all(const Ids& ids, std::uint64_t committed) {
    for (const MemberId id : ids) ask(member(id), committed);
  }
  std::vector<MemberSide> candidates(std::size_t count) {
    std::vector<MemberSide> fresh;
    for (std::size_t i = 0; i < count; ++i) say(fresh.emplace_back(candidate(count)));
    return fresh;
  }
  ArbiterAnswer::Kind ask(MemberSide& side, std::uint64_t committed) {
    side.want_epoch(committed);
    return say(side);
  }
  void leave(MemberSide& side) {
    MemberWord word = side.word();
    word.want = MemberWord::Want::leave;
    arbiter.hear(word, now);
  }
  void lose(const MemberSide& side) { arbiter.detach(side.word().token, now); }

  // Three members in epoch 1.
  void begin() {
    for (int i = 0; i < 3; ++i) members.push_back(candidate(3));
    for (MemberSide& side : members) ASSERT_EQ(say(side), wait);
    now += 1s;
    ASSERT_TRUE(arbiter.decide(now));
    for (MemberSide& side : members) ASSERT_EQ(say(side), membership);
    ASSERT_EQ(arbiter.present().ids, (Ids{1, 2, 3}));
  }
  MemberSide& member(MemberId id) { return members.at(id - 1); }

  Arbiter::Time now{};
  std::uint64_t runs = 0, tokens = 0;
  std::string said;
  std::vector<MemberSide> members;  // by id
  Arbiter arbiter = make();
};

TEST_F(Arbiters, first_epoch_begins_when_enough_have_joined) {
  MemberSide one = candidate(3), two = candidate(3), three = candidate(2);
  say(one);
  say(two);
  now += 5s;
  EXPECT_FALSE(arbiter.decide(now));
  say(three);
  ASSERT_TRUE(arbiter.decide(now));
  EXPECT_EQ(arbiter.present().epoch, 1u);
  EXPECT_EQ(arbiter.present().ids, (Ids{1, 2, 3}));
  EXPECT_EQ(arbiter.present().joined, arbiter.present().ids);
  EXPECT_FALSE(arbiter.decide(now));
  EXPECT_EQ(say(three), membership);
  EXPECT_EQ(three.word().id, 3u);
}

TEST_F(Arbiters, candidate_that_left_or_is_away_does_not_count) {
  MemberSide one = candidate(2), two = candidate(2), three = candidate(2);
  say(one);
  say(two);
  say(three);
  leave(one);
  lose(two);
  now += 1s;
  EXPECT_FALSE(arbiter.decide(now));
  say(two);  // it is back
  EXPECT_TRUE(arbiter.decide(now));
  EXPECT_EQ(arbiter.present().ids, (Ids{1, 2}));
}

TEST_F(Arbiters, survivors_go_on_with_the_most_committed_steps) {
  begin();
  EXPECT_EQ(ask(member(1), 8), wait);
  EXPECT_FALSE(arbiter.decide(now));
  leave(member(2));
  ask(member(3), 7);
  expect_epoch({1, 3}, {2});
  EXPECT_EQ(arbiter.present().committed, 8u);
  for (const MemberId id : {1, 3}) say(member(id));
  ask(member(1), 9);
  ask(member(3), 10);
  expect_epoch({1, 3});
  EXPECT_EQ(arbiter.present().committed, 10u);
}

TEST_F(Arbiters, silent_member_is_given_up_after_the_grace_and_refused_later) {
  begin();
  ask(member(1), 5);
  now += 1s;
  ask(member(3), 5);
  now += 8s;
  EXPECT_FALSE(arbiter.decide(now));
  now += 1s;
  ASSERT_TRUE(arbiter.decide(now));
  EXPECT_EQ(arbiter.present().lost, (Ids{2}));
  EXPECT_EQ(say(member(2)), refused);
  EXPECT_EQ(member(2).refusal(), "it was given up, and can only join anew");
  EXPECT_FALSE(member(2).waits());
  MemberSide stranger({.token = 7, .id = 2, .last = member(1).word().last});
  EXPECT_EQ(say(stranger), refused) << "another token";
}

TEST_F(Arbiters, member_whose_connection_broke_comes_back_and_loses_nothing) {
  begin();
  lose(member(2));
  now += 60s;
  EXPECT_FALSE(arbiter.decide(now)) << "nobody asked for a change";
  EXPECT_EQ(say(member(2)), wait);
  expect_contains(said, "the connection of member 2 broke");
  expect_contains(said, "member 2 is back");
  ask_all({1, 2, 3}, 4);
  expect_epoch({1, 2, 3});
}

TEST_F(Arbiters, change_waits_for_a_broken_connection_for_as_long_as_reattach) {
  begin();
  ask_all({1, 3}, 4);
  lose(member(2));
  now += 1999ms;
  EXPECT_FALSE(arbiter.decide(now));
  now += 1ms;
  ASSERT_TRUE(arbiter.decide(now));
  EXPECT_EQ(arbiter.present().lost, (Ids{2}));
}

TEST_F(Arbiters, answer_that_was_lost_is_given_again) {
  begin();
  ask_all({1, 3}, 4);
  member(2).want_epoch(4);
  arbiter.hear(member(2).word(), now);
  lose(member(2));
  now += 1s;
  EXPECT_FALSE(arbiter.decide(now)) << "it asked, but nobody could answer";
  say(member(2));
  ASSERT_TRUE(arbiter.decide(now));
  now += 1s;
  for (int i = 0; i < 2; ++i) {
    MemberSide copy = member(2);
    EXPECT_EQ(say(copy), membership);
    EXPECT_EQ(copy.word().last.epoch, 2u);
    EXPECT_FALSE(copy.waits());
  }
}

TEST_F(Arbiters, joiners_come_in_at_the_next_epoch_under_new_ids) {
  begin();
  MemberSide joiner = candidate(1);
  EXPECT_EQ(say(joiner), wait);
  EXPECT_EQ(joiner.why_it_waits(), "did not answer in time; the job has 3 members, who let others in after a step");
  EXPECT_FALSE(member(1).has_joiners(now));
  say(member(1));
  EXPECT_TRUE(member(1).has_joiners(now));
  EXPECT_FALSE(member(1).has_joiners(now + 2s)) << "old news: the arbiter may be gone by now";
  now += 5s;
  EXPECT_FALSE(arbiter.decide(now)) << "nobody has asked";
  ask_all({1, 2, 3}, 4);
  ASSERT_TRUE(arbiter.decide(now));
  EXPECT_EQ(arbiter.present().joined, (Ids{4}));
  EXPECT_EQ(arbiter.present().ids, (Ids{1, 2, 3, 4}));
  EXPECT_EQ(arbiter.candidates(), 0u);
}

TEST_F(Arbiters, job_begins_anew_when_all_have_left) {
  begin();
  for (MemberSide& side : members) leave(side);
  candidates(3);
  expect_epoch({4, 5, 6}, {1, 2, 3});
  EXPECT_EQ(arbiter.present().run, 2u);
  EXPECT_EQ(arbiter.present().committed, 0u);
}

TEST_F(Arbiters, no_second_job_begins_while_members_that_are_away_may_come_back) {
  begin();
  for (MemberSide& side : members) lose(side);  // the network between them and the arbiter
  const std::vector<MemberSide> fresh = candidates(3);
  now += 9s;
  EXPECT_FALSE(arbiter.decide(now));
  expect_contains(fresh[0].why_it_waits(), "members 1, 2, 3 of the job are waited for");
  EXPECT_EQ(say(member(1)), wait);
  now += 60s;
  EXPECT_FALSE(arbiter.decide(now)) << "member 1 is there";
  lose(member(1));
  now += 10s;
  EXPECT_TRUE(arbiter.decide(now));
  EXPECT_EQ(arbiter.present().ids, (Ids{4, 5, 6}));
  EXPECT_EQ(say(member(2)), refused);
  EXPECT_EQ(member(2).refusal(), "the arbiter serves another start of this job, with members 4, 5, 6 in epoch 2");
}

TEST_F(Arbiters, new_arbiter_adopts_the_epoch_of_its_members) {
  begin();
  arbiter = make();
  MemberSide joiner = candidate(1);
  EXPECT_EQ(say(joiner), wait);
  EXPECT_FALSE(arbiter.decide(now)) << "members have a second to come";
  EXPECT_EQ(say(member(2)), wait);
  now += 5s;
  EXPECT_FALSE(arbiter.decide(now));
  EXPECT_EQ(arbiter.present().ids, (Ids{1, 2, 3}));
  for (MemberSide& side : members) EXPECT_EQ(ask(side, 9), wait);
  ASSERT_TRUE(arbiter.decide(now));
  EXPECT_EQ(arbiter.present().epoch, 2u);
  EXPECT_EQ(arbiter.present().ids, (Ids{1, 2, 3, 4}));
  EXPECT_EQ(arbiter.present().committed, 9u);
  EXPECT_EQ(arbiter.present().run, 1u);
}

TEST_F(Arbiters, new_arbiter_waits_the_grace_for_members_that_it_has_not_heard) {
  begin();
  arbiter = make();
  ask_all({1, 2}, 3);
  now += 9s;
  EXPECT_FALSE(arbiter.decide(now));
  now += 1s;
  ASSERT_TRUE(arbiter.decide(now));
  EXPECT_EQ(arbiter.present().lost, (Ids{3}));
}

TEST_F(Arbiters, new_arbiter_takes_the_newest_epoch_of_its_members) {
  begin();
  leave(member(3));
  ask_all({1, 2}, 4);
  ASSERT_TRUE(arbiter.decide(now));
  EXPECT_EQ(say(member(1)), membership);  // the arbiter dies before member 2 has its answer
  arbiter = make();
  EXPECT_EQ(say(member(2)), wait);
  EXPECT_EQ(say(member(1)), wait);
  EXPECT_EQ(arbiter.present().epoch, 2u);
  EXPECT_EQ(say(member(2)), membership);
  EXPECT_EQ(member(2).word().last.ids, (Ids{1, 2}));
}

TEST_F(Arbiters, job_that_a_new_arbiter_started_gives_way_to_the_older_one) {
  begin();
  arbiter = make();
  MemberSide joiner = candidate(1);
  say(joiner);
  now += 1s;
  ASSERT_TRUE(arbiter.decide(now));  // the members came too late; other candidates of this job want three
  EXPECT_EQ(say(joiner), membership);
  EXPECT_EQ(say(member(1)), wait);
  EXPECT_EQ(arbiter.present().ids, (Ids{1, 2, 3}));
  EXPECT_EQ(say(joiner), refused);
  EXPECT_EQ(joiner.refusal(), "the arbiter serves another start of this job, with members 1, 2, 3 in epoch 1");
}

TEST_F(Arbiters, arbiter_with_its_state_goes_on_exactly) {
  begin();
  leave(member(3));
  ask_all({1, 2}, 4);
  ASSERT_TRUE(arbiter.decide(now));
  const std::string state = write_state(arbiter.state());
  arbiter = make(read_arbiter_state(state));  // nobody has heard of epoch 2 yet
  EXPECT_EQ(write_state(arbiter.state()), state);
  EXPECT_EQ(say(member(1)), membership);
  EXPECT_EQ(say(member(2)), membership);
  EXPECT_EQ(member(2).word().last.epoch, 2u);
  EXPECT_EQ(say(member(3)), refused) << "it has left";
}

TEST_F(Arbiters, arbiter_that_stood_still_gives_its_members_their_time) {
  begin();
  ask_all({1, 3}, 4);
  lose(member(2));
  now += 300s;
  arbiter.slept(300s);
  EXPECT_FALSE(arbiter.decide(now));
  EXPECT_EQ(ask(member(2), 4), wait);
  expect_epoch({1, 2, 3});
}

TEST_F(Arbiters, member_notes_once_that_the_arbiter_is_gone_and_once_that_it_is_back) {
  begin();
  for (int i = 0; i < 3; ++i) member(1).miss("connection refused", now + i * 1s);
  EXPECT_FALSE(member(1).has_joiners(now));
  EXPECT_EQ(member(1).take_notes(),
            (std::vector<std::string>{"the arbiter cannot be reached, and the job goes on: connection refused"}));
  now += 4s;
  say(member(1));
  EXPECT_EQ(member(1).take_notes(), (std::vector<std::string>{"the arbiter answers again, after 4 s"}));
  EXPECT_TRUE(member(1).take_notes().empty());
}

TEST_F(Arbiters, answer_to_an_older_word_is_not_the_next_epoch) {
  begin();
  MemberSide& side = member(1);
  const MemberWord here = side.word();
  side.want_epoch(4);
  side.hear(here, {.kind = membership, .id = 1, .membership = arbiter.present()}, now);
  EXPECT_TRUE(side.waits());
}

TEST(Membership, text_is_read_as_it_was_written) {
  const Membership one{.epoch = 3,
                       .ids = {1, 4},
                       .lost = {2, 3},
                       .joined = {4},
                       .committed = 17,
                       .run = 12345678901234567890U,
                       .last_id = 6};
  const Membership two = read_membership(write_membership(one));
  const auto fields = [](const Membership& m) {
    return std::tie(m.epoch, m.ids, m.lost, m.joined, m.committed, m.run, m.last_id);
  };
  EXPECT_EQ(fields(two), fields(one));
  for (const char* text : {"", "1", "1 2 3 4 99999999 1", "1 2 3 4 1 x", "1 2 3 4 0 0 0", "1 0 3 4 1 1 0 0",
                           "1 2 5 4 2 5 1 0 0", "1 2 5 4 2 1 1 0 0", "1 2 5 4 2 0 1 0 0", "1 2 3 4 1 4 0 0"})
    EXPECT_THROW(read_membership(text), CommError) << text;
}

TEST(MemberWord, text_is_read_as_it_was_written) {
  const MemberWord one{.want = MemberWord::Want::regroup,
                       .token = 99,
                       .id = 4,
                       .committed = 8,
                       .least = 2,
                       .last = {.epoch = 3, .ids = {1, 4}, .run = 5, .last_id = 4}};
  EXPECT_EQ(write_word(read_word(write_word(one))), write_word(one));
  const MemberWord candidate{.want = MemberWord::Want::leave, .token = 1};
  EXPECT_EQ(write_word(read_word(write_word(candidate))), write_word(candidate));
  for (const char* text : {"", "z 1 0 0 0 1", "a 0 0 0 0 1", "a 1 0 2 0 1", "a 1 0 2 0 1 5 3 4 0 1 1 0 0"})
    EXPECT_THROW(read_word(text), CommError) << text;
}

TEST(ArbiterState, damaged_text_is_refused) {
  const ArbiterState state{{.epoch = 2, .ids = {1, 2}, .run = 7, .last_id = 2}, {{1, 11}, {2, 0}}};
  const std::string text = write_state(state);
  EXPECT_EQ(write_state(read_arbiter_state(text)), text);
  for (std::size_t length = 0; length + 1 < text.size(); ++length)
    EXPECT_THROW(read_arbiter_state(text.substr(0, length)), CommError) << length;
  EXPECT_EQ(write_state(read_arbiter_state(write_state({}))), write_state({}));
}

}  // namespace
}  // namespace oktopk::rendezvous_arbiter_test
