// SPDX-License-Identifier: Apache-2.0
#include "oktopk/comm/rendezvous/arbiter.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <sstream>
#include <string_view>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/comm/transport_support.h"

namespace oktopk {
namespace {

constexpr std::size_t kMostMembers = 65536;
// The arbiter's word about joiners counts for so long.
constexpr auto kNewsTime = std::chrono::seconds(1);
constexpr const char* kStateHead = "oktopk-arbiter-1";

const std::string kGivenUp = "it was given up, and can only join anew";

std::string list_of(const std::vector<MemberId>& ids) {
  std::string text;
  for (const MemberId id : ids) text += text_of(text.empty() ? "" : ", ", id);
  return text;
}

bool has(const std::vector<MemberId>& ids, MemberId id) { return std::ranges::binary_search(ids, id); }

void read_membership(std::istringstream& in, Membership& membership, const std::string& text) {
  in >> membership.run >> membership.epoch >> membership.last_id >> membership.committed;
  for (auto* list : {&membership.ids, &membership.lost, &membership.joined}) {
    std::size_t size = 0;
    in >> size;
    if (!in || size > kMostMembers) fail<CommError>("rendezvous: a membership that cannot be read: ", text);
    list->resize(size);
    for (MemberId& id : *list) in >> id;
  }
  const std::vector<MemberId>& ids = membership.ids;
  const bool is_one = !ids.empty() && membership.epoch > 0 && ids.front() > 0 && ids.back() <= membership.last_id &&
                      std::ranges::adjacent_find(ids, std::ranges::greater_equal()) == ids.end();
  if (!in || !is_one) fail<CommError>("rendezvous: a membership that cannot be read: ", text);
}

}  // namespace

std::string write_membership(const Membership& membership) {
  std::string text = text_of(membership.run, " ", membership.epoch, " ", membership.last_id, " ", membership.committed);
  for (const auto* list : {&membership.ids, &membership.lost, &membership.joined}) {
    text += text_of(" ", list->size());
    for (const MemberId id : *list) text += text_of(" ", id);
  }
  return text;
}

Membership read_membership(const std::string& text) {
  std::istringstream in(text);
  Membership membership;
  read_membership(in, membership, text);
  return membership;
}

std::string write_word(const MemberWord& word) {
  const std::string fixed = text_of(static_cast<char>(word.want), " ", word.token, " ", word.number, " ", word.id, " ",
                                    word.committed, " ", word.least);
  return word.id == 0 ? fixed : fixed + " " + write_membership(word.last);
}

MemberWord read_word(const std::string& text) {
  std::istringstream in(text);
  char want = ' ';
  MemberWord word;
  in >> want >> word.token >> word.number >> word.id >> word.committed >> word.least;
  if (!in || std::string_view("arl").find(want) == std::string_view::npos || word.token == 0)
    fail<CommError>("sent a word of a member that cannot be read: ", text);
  word.want = static_cast<MemberWord::Want>(want);
  if (word.id != 0) read_membership(in, word.last, text);
  if (word.id != 0 && !has(word.last.ids, word.id)) fail<CommError>("sent a word of a member that is in no epoch");
  return word;
}

std::string write_state(const ArbiterState& state) {
  if (state.present.epoch == 0) return text_of(kStateHead, " empty\n");
  std::string text = text_of(kStateHead, " ", write_membership(state.present), " ", state.tokens.size());
  for (const auto& [id, token] : state.tokens) text += text_of(" ", id, " ", token);
  return text + " end\n";
}

ArbiterState read_arbiter_state(const std::string& text) {
  if (text == write_state({})) return {};
  std::istringstream in(text);
  std::string head, end;
  in >> head;
  if (head != kStateHead) fail<CommError>("it does not begin with ", kStateHead);
  ArbiterState state;
  read_membership(in, state.present, text);
  std::size_t size = 0;
  in >> size;
  for (std::size_t i = 0; in && i < std::min(size, kMostMembers); ++i) {
    MemberId id = 0;
    in >> id;
    in >> state.tokens[id];
  }
  in >> end;
  const bool fits =
      std::ranges::all_of(state.tokens, [&](const auto& one) { return has(state.present.ids, one.first); });
  if (!in || end != "end" || state.tokens.size() != size || !fits) fail<CommError>("it is damaged");
  return state;
}

void MemberSide::want_epoch(std::uint64_t committed) {
  word_.want = MemberWord::Want::regroup;
  word_.committed = committed;
}

MemberWord MemberSide::next_word() {
  ++word_.number;
  return word_;
}

void MemberSide::hear(const MemberWord& word, const ArbiterAnswer& answer, Time now) {
  using enum ArbiterAnswer::Kind;
  if (missing_.has_value() && word_.id != 0)
    note(text_of("the arbiter answers again, after ", std::round(10 * in_seconds(now - *missing_)) / 10, " s"));
  missing_.reset();
  trouble_.clear();
  heard_ = now;
  joiners_ = answer.candidates;
  if (answer.kind == wait) why_ = answer.why;
  if (answer.kind == refused) refusal_ = answer.why;
  // An answer to a word that wanted less is not the one that this member waits for.
  if (answer.kind != membership || word.want != MemberWord::Want::regroup || !waits()) return;
  word_.last = answer.membership;
  word_.id = answer.id;
  word_.want = MemberWord::Want::attach;
}

void MemberSide::miss(const std::string& why, Time now) {
  trouble_ = why;
  if (missing_.has_value()) return;
  missing_ = now;
  if (word_.id != 0) note(text_of("the arbiter cannot be reached, and the job goes on: ", why));
}

std::string MemberSide::why_it_waits() const {
  if (!trouble_.empty()) return trouble_;
  return text_of("did not answer in time", why_.empty() ? "" : "; " + why_);
}

bool MemberSide::has_joiners(Time now) const {
  return joiners_ > 0 && !missing_.has_value() && heard_.has_value() && now - *heard_ < kNewsTime;
}

std::vector<std::string> MemberSide::take_notes() { return std::exchange(notes_, {}); }

void MemberSide::note(std::string text) {
  if (notes_.size() == kMostNotes) notes_.erase(notes_.begin());
  notes_.push_back(std::move(text));
}

// Members that a state names have no connection yet.
Arbiter::Arbiter(ArbiterOptions options, Time now, const ArbiterState& state)
    : options_(std::move(options)), start_(now) {
  if (state.present.epoch == 0) return;
  adopt(state.present, now);
  for (auto& [id, member] : members_) {
    const auto token = state.tokens.find(id);
    member.has_left = token == state.tokens.end();
    if (!member.has_left) member.token = token->second;
  }
}

ArbiterState Arbiter::state() const {
  ArbiterState state{present_, {}};
  for (const auto& [id, member] : members_)
    if (!member.has_left) state.tokens[id] = member.token;
  return state;
}

// An arbiter that is new in its place knows less than the members.
bool Arbiter::is_behind(const Membership& other, Time now) const {
  if (present_.epoch == 0) return true;
  if (other.run == present_.run) return other.epoch > present_.epoch;
  return may_give_way_ && now < start_ + options_.grace;
}

void Arbiter::adopt(const Membership& other, Time now) {
  log(text_of("goes on with epoch ", other.epoch, " of members ", list_of(other.ids)));
  present_ = other;
  may_give_way_ = false;
  members_.clear();
  first_report_.reset();
  for (const MemberId id : other.ids) members_[id].away_since = now;
}

ArbiterAnswer Arbiter::hear(const MemberWord& word, Time now) {
  least_ = std::max(least_, word.least);
  if (word.id == 0) return hear_candidate(word);
  if (is_behind(word.last, now)) adopt(word.last, now);
  return hear_member(word, now);
}

ArbiterAnswer Arbiter::hear_candidate(const MemberWord& word) {
  const bool leaves = word.want == MemberWord::Want::leave;
  // It has been let in, and has not heard of it.
  for (auto& [id, member] : members_)
    if (member.token == word.token && !member.has_left) {
      member.has_left = leaves;
      member.was_heard = true;
      member.away_since.reset();
      return admit(id);
    }
  const auto at = std::ranges::find(candidates_, word.token, &Candidate::token);
  if (leaves) {
    if (at != candidates_.end()) candidates_.erase(at);
    return {};
  }
  if (at == candidates_.end())
    candidates_.push_back({word.token, {}});
  else
    at->away_since.reset();
  return make_wait();
}

ArbiterAnswer Arbiter::hear_member(const MemberWord& word, Time now) {
  using enum ArbiterAnswer::Kind;
  if (word.last.run != present_.run)
    return {.kind = refused,
            .why = text_of("the arbiter serves another start of this job, with members ", list_of(present_.ids),
                           " in epoch ", present_.epoch)};
  const auto at = members_.find(word.id);
  const bool is_known =
      at != members_.end() && !at->second.has_left && (at->second.token == word.token || at->second.token == 0);
  const bool has_missed = word.last.epoch + 1 < present_.epoch;
  const bool is_other = word.last.epoch == present_.epoch && word.last.ids != present_.ids;
  if (!is_known || has_missed || is_other) return {.kind = refused, .why = kGivenUp};
  Member& member = at->second;
  member.token = word.token;
  if (std::exchange(member.away_since, {}).has_value()) log(text_of("member ", word.id, " is back"));
  member.was_heard = true;
  if (word.want == MemberWord::Want::leave) {
    member.has_left = true;
    return {};
  }
  if (word.last.epoch < present_.epoch) return admit(word.id);  // it asked, and the answer was lost
  if (word.want == MemberWord::Want::attach) return make_wait();
  member.has_reported = true;
  member.committed = word.committed;
  if (!first_report_.has_value()) first_report_ = now;
  return make_wait();
}

void Arbiter::detach(std::uint64_t token, Time now) {
  const auto at = std::ranges::find(candidates_, token, &Candidate::token);
  if (at != candidates_.end()) at->away_since = now;
  for (auto& [id, member] : members_) {
    if (member.token != token || member.has_left) continue;
    member.away_since = now;
    log(text_of("the connection of member ", id, " broke; a change of members waits for it for ",
                in_seconds(patience_with(member)), " s"));
  }
}

void Arbiter::slept(Communicator::Duration time) {
  start_ += time;
  if (first_report_.has_value()) *first_report_ += time;
  for (auto& [id, member] : members_)
    if (member.away_since.has_value()) *member.away_since += time;
  for (Candidate& candidate : candidates_)
    if (candidate.away_since.has_value()) *candidate.away_since += time;
}

std::size_t Arbiter::candidates() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(candidates_, [](const Candidate& one) { return !one.away_since.has_value(); }));
}

std::string Arbiter::why_it_waits() const {
  std::vector<MemberId> missing, away;
  std::size_t members = 0;
  for (const auto& [id, member] : members_) {
    if (member.has_left) continue;
    ++members;
    if (member.away_since.has_value()) away.push_back(id);
    if (member.away_since.has_value() || !member.has_reported) missing.push_back(id);
  }
  if (first_report_.has_value()) return text_of("members ", list_of(missing), " have not come to the next epoch yet");
  if (members > away.size()) return text_of("the job has ", members, " members, who let others in after a step");
  if (members > 0)
    return text_of("members ", list_of(away), " of the job are waited for, up to ", in_seconds(options_.grace), " s");
  return text_of(present_.epoch == 0 ? "the first epoch" : "all members have gone, and a new start", " needs ", least_,
                 " members; beside this one there are ", std::max<std::size_t>(candidates(), 1) - 1);
}

Communicator::Duration Arbiter::patience_with(const Member& member) const {
  return member.was_heard ? std::min(options_.reattach, options_.grace) : options_.grace;
}

bool Arbiter::is_gone(const Member& member, Time now, Communicator::Duration patience) const {
  return member.has_left || (member.away_since.has_value() && now >= *member.away_since + patience);
}

bool Arbiter::job_is_over(Time now) const {
  return std::ranges::all_of(members_, [&](const auto& one) { return is_gone(one.second, now, options_.grace); });
}

bool Arbiter::is_due(Time now) const {
  if (job_is_over(now)) {
    const std::size_t waiting = candidates();
    return waiting > 0 && waiting >= least_ && now >= start_ + options_.settle;
  }
  if (!first_report_.has_value()) return false;
  const auto is_settled = [&](const auto& one) {
    const Member& member = one.second;
    return is_gone(member, now) || (member.has_reported && !member.away_since.has_value());
  };
  return std::ranges::all_of(members_, is_settled) || now >= *first_report_ + options_.grace;
}

bool Arbiter::decide(Time now) {
  std::erase_if(candidates_, [&](const Candidate& one) {
    return one.away_since.has_value() && now >= *one.away_since + options_.reattach;
  });
  if (!is_due(now)) return false;
  const bool goes_on = !job_is_over(now);
  std::vector<MemberId> stay;
  for (const auto& [id, member] : members_)
    if (goes_on && !is_gone(member, now) && member.has_reported) stay.push_back(id);
  if (goes_on && stay.empty()) {  // whoever asked has gone since
    first_report_.reset();
    return false;
  }
  if (!goes_on) {
    may_give_way_ = present_.epoch == 0;
    present_.run = options_.random();
  }
  begin_epoch(std::move(stay));
  return true;
}

void Arbiter::begin_epoch(std::vector<MemberId> stay) {
  Membership next{.epoch = present_.epoch + 1, .run = present_.run, .last_id = present_.last_id};
  std::map<MemberId, Member> members;
  for (const auto& [id, member] : members_) {
    if (!has(stay, id)) {
      next.lost.push_back(id);
      continue;
    }
    next.committed = std::max(next.committed, member.committed);
    members[id] = {.token = member.token, .was_heard = member.was_heard, .away_since = member.away_since};
  }
  next.ids = std::move(stay);
  for (const Candidate& candidate : candidates_) {
    if (candidate.away_since.has_value()) continue;
    members[++next.last_id] = {.token = candidate.token, .was_heard = true};
    next.joined.push_back(next.last_id);
    next.ids.push_back(next.last_id);  // larger than all others
  }
  std::erase_if(candidates_, [](const Candidate& one) { return !one.away_since.has_value(); });
  first_report_.reset();
  members_ = std::move(members);
  present_ = std::move(next);
  log(text_of("epoch ", present_.epoch, ": members ", list_of(present_.ids),
              present_.lost.empty() ? "" : "; lost " + list_of(present_.lost)));
}

}  // namespace oktopk
