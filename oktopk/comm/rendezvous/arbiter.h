// SPDX-License-Identifier: Apache-2.0
// Decides who is in the next epoch of a job whose ranks change (elastic_world.h). It has no sockets and no clock of its
// own: RendezvousServer passes on what members say and whose connection broke, and asks whether a decision is due.
//
// A member is known by a token, a random number of its own. Its word says all that it knows: its epoch, what it wants,
// what it has committed. So a word may be repeated, over any connection, and a member that has not got an answer asks
// again. A broken connection is no loss: the member may come back at any time before the next epoch is decided.
//
// An epoch is decided when each member has asked for it, has left, or is waited for no longer: `grace` long since one
// of them asked, and, where its connection broke, `reattach` long since then. All candidates come in. A new job begins
// when all members have left, or are away for longer than `grace`.
//
// A new arbiter in the place of one that died learns the epoch from its state (ArbiterState), or adopts it from the
// first member that comes, and waits for the others for `grace`. It starts no job before `settle` is over, in which
// members that live find it; a job that it started all the same gives way to the older one within `grace`.
// COST: O(members) per call.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "oktopk/comm/elastic_world.h"

namespace oktopk {

struct MemberWord {
  enum class Want : char {
    attach = 'a',   // nothing: it is here
    regroup = 'r',  // the next epoch; of a candidate: the first one with it
    leave = 'l',    // it goes, for good
  };
  Want want = Want::attach;
  std::uint64_t token = 0;   // not 0
  std::uint64_t number = 0;  // counts the words of this member: an older one that comes later is void
  MemberId id = 0;           // 0: a candidate
  std::uint64_t committed = 0;
  std::uint64_t least = 1;  // of a candidate: members of the first epoch
  Membership last = {};     // that this member is in
};
std::string write_word(const MemberWord& word);
MemberWord read_word(const std::string& text);  // CommError if the text is none

struct ArbiterAnswer {
  enum class Kind { wait, membership, refused };
  Kind kind = Kind::wait;
  MemberId id = 0;             // of the member
  Membership membership = {};  // the epoch that it is in now
  std::string why = {};        // why it waits or is refused
  std::size_t candidates = 0;  // that wait to come in
};

// A member's side: what it says next, and what it has heard. Without threads and sockets, as the arbiter.
class MemberSide {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit MemberSide(MemberWord first) : word_(std::move(first)) {}

  // Asks for the next epoch; of a candidate: the first one with it.
  void want_epoch(std::uint64_t committed);
  const MemberWord& word() const { return word_; }
  MemberWord next_word();  // to be said now
  bool waits() const { return word_.want == MemberWord::Want::regroup && refusal_.empty(); }

  // The answer to a word that this member said.
  void hear(const MemberWord& word, const ArbiterAnswer& answer, Time now);
  // There was no answer, or no connection.
  void miss(const std::string& why, Time now);

  const std::string& refusal() const { return refusal_; }  // why this member was given up; empty: it was not
  // Why there is no epoch yet, for an error.
  std::string why_it_waits() const;
  bool was_ever_heard() const { return heard_.has_value(); }
  // Whether somebody waited to come in when the arbiter last answered, if that is not long ago: a step that regroups
  // waits for the arbiter.
  bool has_joiners(Time now) const;
  // Lines for a person; at most kMostNotes since the last call.
  std::vector<std::string> take_notes();

 private:
  static constexpr std::size_t kMostNotes = 16;
  void note(std::string text);

  MemberWord word_;
  std::optional<Time> heard_;    // the last answer
  std::optional<Time> missing_;  // since then, the arbiter has not answered
  std::string trouble_;          // the reason
  std::string why_;              // this member waits
  std::string refusal_;
  std::size_t joiners_ = 0;
  std::vector<std::string> notes_;
};

// All that an arbiter must know to go on where another one ended.
struct ArbiterState {
  Membership present;
  std::map<MemberId, std::uint64_t> tokens;  // of its members that have not left; 0: not heard of yet
};
std::string write_state(const ArbiterState& state);
ArbiterState read_arbiter_state(const std::string& text);  // CommError if the text is none

struct ArbiterOptions {
  Communicator::Duration grace = std::chrono::seconds(30);    // for silent members, since one asked for the next epoch
  Communicator::Duration reattach = std::chrono::seconds(2);  // for those whose connection broke, since then
  Communicator::Duration settle = std::chrono::seconds(1);    // before a first epoch
  std::function<std::uint64_t()> random = {};                 // names runs
  std::function<void(const std::string&)> log = {};           // what happens to members; may be empty
};

class Arbiter {
 public:
  using Time = std::chrono::steady_clock::time_point;

  Arbiter(ArbiterOptions options, Time now, const ArbiterState& state = {});

  // A member or a candidate says this over a connection that stands. An answer `wait` may change with the next
  // decision: the word is then to be repeated.
  ArbiterAnswer hear(const MemberWord& word, Time now);
  // Its connection broke.
  void detach(std::uint64_t token, Time now);
  // Whether a new epoch began.
  bool decide(Time now);
  // The arbiter itself stood still for so long, and heard nobody.
  void slept(Communicator::Duration time);

  std::size_t candidates() const;  // that can come in
  // Why the members that wait do so.
  std::string why_it_waits() const;
  const Membership& present() const { return present_; }
  ArbiterState state() const;

 private:
  struct Member {
    std::uint64_t token = 0;
    bool has_left = false;
    bool has_reported = false;
    std::uint64_t committed = 0;
    bool was_heard = false;          // by this arbiter
    std::optional<Time> away_since;  // its connection broke, or it has not come to this arbiter yet
  };
  struct Candidate {
    std::uint64_t token = 0;
    std::optional<Time> away_since;
  };

  ArbiterAnswer hear_candidate(const MemberWord& word);
  ArbiterAnswer hear_member(const MemberWord& word, Time now);
  ArbiterAnswer admit(MemberId id) const { return {ArbiterAnswer::Kind::membership, id, present_, {}, candidates()}; }
  ArbiterAnswer make_wait() const { return {.why = why_it_waits(), .candidates = candidates()}; }
  bool is_behind(const Membership& other, Time now) const;
  void adopt(const Membership& other, Time now);
  bool is_due(Time now) const;
  Communicator::Duration patience_with(const Member& member) const;
  bool is_gone(const Member& member, Time now, Communicator::Duration patience) const;
  bool is_gone(const Member& member, Time now) const { return is_gone(member, now, patience_with(member)); }
  bool job_is_over(Time now) const;
  void begin_epoch(std::vector<MemberId> stay);
  void log(const std::string& text) const {
    if (options_.log) options_.log(text);
  }

  ArbiterOptions options_;
  Time start_;
  bool may_give_way_ = false;  // it started the present run, and might have missed an older one
  Membership present_;
  std::map<MemberId, Member> members_;  // of the present epoch
  std::vector<Candidate> candidates_;   // first come, first numbered
  std::uint64_t least_ = 1;
  std::optional<Time> first_report_;
};

// A membership as text, for a reply of the server.
std::string write_membership(const Membership& membership);
// CommError if the text is none.
Membership read_membership(const std::string& text);

}  // namespace oktopk
