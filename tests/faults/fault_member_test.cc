// SPDX-License-Identifier: Apache-2.0
// Members that count together while others crash, pause, lose connections and join. Each turn is voted for, and counts
// once all have voted; after a failure the members regroup.
#include "tests/faults/fault_member.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"

namespace oktopk::faults::fault_member_test {

constexpr std::uint64_t kTurns = 12;

class Counting {
 public:
  explicit Counting(std::uint64_t seed) : plan_(draw_plan(seed, {.least_ranks = 2})), scheduler_(seed) {
    for (int r = 0; r < plan_.P; ++r) scheduler_.add(text_of("actor ", r), [this, r] { count(r, plan_.P); });
    for (const Fault& fault : draw_faults(plan_, 0))
      if (fault.kind != FaultKind::flip) network_.arm(fault.rank, fault);
    for (int j = 0; j < 2; ++j) {
      const int actor = plan_.P + j;
      scheduler_.add(text_of("joiner ", j), [this, actor] {
        scheduler_.wait(
            actor, Duration(scheduler_.random().below(100'000'000)), [] { return false; }, "its time");
        count(actor, plan_.P);
      });
    }
  }

  void run() {
    scheduler_.run();
    for (const std::string& failure : scheduler_.failures()) ADD_FAILURE() << failure << "\n" << scheduler_.report();
  }
  int finished() const { return finished_; }
  std::uint64_t struck() const { return network_.struck(); }
  std::uint64_t arbiter_struck() const { return arbiter_.struck(); }
  std::uint64_t epochs() const { return arbiter_.epochs().size(); }
  std::uint64_t history() const { return scheduler_.history(); }

 private:
  void count(int actor, int least) {
    try {
      FaultMember member(arbiter_, actor, 0.1, least);
      see(member);
      for (std::uint64_t done = member.membership().committed; done < kTurns;) done = turn(member, done);
      ++finished_;
    } catch (const CommError& error) {
      scheduler_.note(text_of("a member ends: ", error.what()));
    }
  }

  // All members of an epoch must have got the same answer.
  void see(const FaultMember& member) {
    const Membership& mine = member.membership();
    const auto [at, is_new] = seen_.try_emplace(mine.epoch, mine);
    if (!is_new && (at->second.ids != mine.ids || at->second.committed != mine.committed))
      scheduler_.failure(text_of("epoch ", mine.epoch, " has two memberships"));
  }

  std::uint64_t turn(FaultMember& member, std::uint64_t done) {
    bool has_voted = false;
    try {
      Workspace work;
      // The vote: the turn that each member is about to count, and whether somebody waits to join.
      const auto least = allreduce_small(member.comm(), done, Reduction::min, work);
      const auto most = allreduce_small(member.comm(), done, Reduction::max, work);
      if (least != most) scheduler_.failure(text_of("members count turns ", least, " and ", most));
      has_voted = true;
      const auto joins = allreduce_small(member.comm(), std::uint64_t{member.has_joiners()}, Reduction::max, work);
      ++done;
      if (joins == 0) return done;
      has_voted = false;
    } catch (const CommError&) {
      // The turn counts if it counted anywhere.
    }
    const std::uint64_t committed = member.regroup(done).committed;
    see(member);
    if (committed > done && !(has_voted && committed == done + 1))
      scheduler_.failure(text_of("turn ", committed, " counted, although a member had not voted for it"));
    return committed;
  }

  Plan plan_;
  Scheduler scheduler_;
  Network network_{scheduler_, {.slow = 0.05}};
  ArbiterHost arbiter_{network_, draw_arbiter_faults(plan_)};
  std::map<std::uint64_t, Membership> seen_;
  int finished_ = 0;
};

TEST(FaultMember, members_count_on_whatever_happens) {
  std::uint64_t struck = 0, arbiter_struck = 0, epochs = 0;
  int finished = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(text_of("seed ", seed));
    Counting counting(seed);
    counting.run();
    struck += counting.struck();
    arbiter_struck += counting.arbiter_struck();
    epochs += counting.epochs();
    finished += counting.finished();
  }
  EXPECT_GT(struck, 50u);
  EXPECT_GT(arbiter_struck, 100u);
  EXPECT_GT(epochs, 200u);
  EXPECT_GT(finished, 300);
}

TEST(FaultMember, run_of_a_seed_repeats) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Counting first(seed), second(seed);
    first.run();
    second.run();
    EXPECT_EQ(first.history(), second.history()) << "seed " << seed;
  }
}

}  // namespace oktopk::faults::fault_member_test
