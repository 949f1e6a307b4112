// SPDX-License-Identifier: Apache-2.0
// The process of an elastic job's arbiter in the simulation: the real Arbiter (comm/rendezvous/arbiter.h) as a
// RendezvousServer serves it, with connections that carry words and answers in random times. Faults stop the process,
// end it and start it anew with its state or without, cut members off, and reset connections. At each decision it
// checks what must never happen:
//   loss         a sound member (it lives, was never paused and never cut off for long) is lost or refused
//   second job   a new run begins beside a sound member of an older one
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "oktopk/comm/rendezvous/arbiter.h"
#include "tests/faults/fault_link.h"
#include "tests/faults/network.h"
#include "tests/faults/plan.h"

namespace oktopk::faults {

class ArbiterHost {
 public:
  // How long a member that does not come is waited for: longer than the timeout of a communicator.
  static constexpr Duration kGrace = std::chrono::seconds(200);

  ArbiterHost(Network& network, std::vector<ArbiterFault> faults);

  Network& network() { return network_; }
  Scheduler& scheduler() { return network_.scheduler(); }
  Arbiter::Time now() { return Arbiter::Time(scheduler().now()); }
  // The communicators' world of an epoch that was decided.
  World& world_of(const Membership& membership) const {
    return *worlds_.at({membership.run, membership.epoch, membership.ids});
  }
  const std::vector<Membership>& epochs() const { return epochs_; }  // all that were decided
  std::uint64_t struck() const { return struck_; }
  // The longest that an answer may take: each new arbiter waits for silent members anew.
  Duration longest_answer() const { return longest_answer_; }
  bool is_sound(const FaultLink& link);

  // By members' links. A new connection; 0 where none can be had.
  std::uint64_t connect(const std::shared_ptr<FaultLink>& link);
  void say(std::uint64_t connection, const MemberWord& word);
  // The member's end closes: the arbiter learns it, unless it is never told.
  void close(std::uint64_t connection, bool is_silent);

 private:
  using Event = std::function<void()>;
  struct Connection {
    std::shared_ptr<FaultLink> link;
    std::uint64_t incarnation = 0;
    Duration last_arrival{};
    std::uint64_t number = 0;        // of its last word
    bool is_lost = false;            // silently: nothing gets through any more
    std::optional<MemberWord> word;  // that waits for its answer
    Duration hold{};
  };

  void start(const ArbiterState& state);
  void end();
  void tick();
  void handle(std::uint64_t incarnation, const Event& event);
  void travel_to_arbiter(std::uint64_t connection, const Event& event);
  void receive(std::uint64_t connection, const MemberWord& word);
  void answer(std::uint64_t connection);
  void forget(std::uint64_t connection);
  void look();
  void open_world();
  void check_decision(const Membership& last, const Membership& next);
  void strike(bool is_decision, std::uint64_t number);
  void strike(const ArbiterFault& fault);
  void stop(Duration length);
  void restart(Duration length, bool has_state);
  void lose_connections(const ArbiterFault& fault);
  Duration travel();

  Network& network_;
  const std::vector<ArbiterFault> faults_;
  Duration longest_answer_ = kGrace + std::chrono::seconds(30);
  std::uint64_t struck_ = 0;

  std::unique_ptr<Arbiter> arbiter_;  // null: no process
  std::uint64_t incarnation_ = 0;
  bool is_stopped_ = false;
  bool ticks_ = false;
  std::vector<Event> queue_;  // of a stopped process
  ArbiterState saved_;

  std::map<std::uint64_t, Connection> connections_;
  std::uint64_t last_connection_ = 0;
  std::map<std::uint64_t, std::uint64_t> current_;             // connection by token
  std::map<std::uint64_t, std::shared_ptr<FaultLink>> links_;  // by token
  std::map<int, Duration> cut_until_;                          // by actor
  std::map<MemberId, std::uint64_t> tokens_;                   // of the present members
  std::map<std::tuple<std::uint64_t, std::uint64_t, std::vector<MemberId>>, World*> worlds_;
  std::vector<Membership> epochs_;
  std::uint64_t words_ = 0;
};

}  // namespace oktopk::faults
