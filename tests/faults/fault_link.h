// SPDX-License-Identifier: Apache-2.0
// A member's link to the simulated arbiter: what MemberLink (comm/rendezvous/member.h) does in a thread of its own, as
// events of the simulation, over the real MemberSide. A paused process hears and says nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "oktopk/comm/rendezvous/arbiter.h"
#include "tests/faults/scheduler.h"

namespace oktopk::faults {

class ArbiterHost;

class FaultLink : public std::enable_shared_from_this<FaultLink> {
 public:
  FaultLink(ArbiterHost& host, int actor, std::uint64_t least);

  // By the member.
  void want_epoch(std::uint64_t committed);
  const MemberSide& side() const { return side_; }
  MemberSide& side() { return side_; }
  void when_given_up(std::function<void()> act) { expel_ = std::move(act); }
  // Goes for good.
  void leave();
  // Its process is dead. `is_silent`: nobody is told.
  void die(bool is_silent);

  int actor() const { return actor_; }
  std::uint64_t token() const { return side_.word().token; }
  bool is_over() const { return is_over_; }
  // It was cut off for so long that it may be lost.
  bool was_cut() const { return was_cut_; }
  void note_cut() { was_cut_ = true; }

  // By the arbiter's host.
  void hear(std::uint64_t connection, const MemberWord& word, const ArbiterAnswer& answer);
  void lose(std::uint64_t connection);

 private:
  void run();
  void run_after(Duration pause);
  void miss(const std::string& why);
  // Whether the process can do nothing now; `later` then comes when it can, or never.
  bool is_away(std::function<void()> later);

  ArbiterHost& host_;
  const int actor_;
  MemberSide side_;
  std::function<void()> expel_;
  bool is_over_ = false;
  bool was_cut_ = false;
  bool is_talking_ = false;
  std::uint64_t connection_ = 0;
  std::uint64_t turn_ = 0;  // events of older turns are void
  Duration pause_;
};

}  // namespace oktopk::faults
