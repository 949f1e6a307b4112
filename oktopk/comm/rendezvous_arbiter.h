// SPDX-License-Identifier: Apache-2.0
// Decides who is in the next epoch of a job whose ranks change (elastic_world.h). It has no sockets and no clock of its
// own: RendezvousServer tells it who joined, who reported and whose connection broke, and asks whether a decision is
// due. A decision is due when every member of the epoch has reported or is lost, or when the grace since the first
// report is over; members that have not reported then are lost for good. All candidates that wait come in.
// COST: O(members) per call.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/elastic_world.h"

namespace oktopk {

class Arbiter {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit Arbiter(Communicator::Duration grace) : grace_(grace) {}

  // A new candidate. The first epoch begins with at least as many members as any candidate wants.
  MemberId join(std::uint64_t least) {
    least_ = std::max(least_, least);
    candidates_.push_back(++last_id_);
    return last_id_;
  }

  // The member asks for the next epoch. False if it is not a member of the present one.
  bool report(MemberId id, std::uint64_t committed, Time now) {
    const auto at = members_.find(id);
    if (at == members_.end()) return false;
    at->second = {.has_reported = true, .committed = committed};
    if (!first_report_.has_value()) first_report_ = now;
    return true;
  }

  // The connection of a member or a candidate broke.
  void lose(MemberId id) {
    std::erase(candidates_, id);
    if (members_.erase(id) > 0) lost_.push_back(id);
  }

  std::size_t candidates() const { return candidates_.size(); }
  // Why a candidate that gave up was not let in.
  std::string why_it_waits() const {
    if (!members_.empty()) return text_of("the job has ", members_.size(), " members, who let others in after a step");
    return text_of(epoch_ == 0 ? "the first epoch" : "all members have gone, and a new start", " needs ", least_,
                   " members; beside this one there are ", candidates_.size());
  }

  // The next epoch, if it is due.
  std::optional<Membership> decide(Time now) {
    if (!is_due(now)) return std::nullopt;
    Membership next{.epoch = ++epoch_, .joined = std::exchange(candidates_, {})};
    for (const auto& [id, member] : members_) {
      (member.has_reported ? next.ids : lost_).push_back(id);
      if (member.has_reported) next.committed = std::max(next.committed, member.committed);
    }
    next.lost = std::exchange(lost_, {});
    std::ranges::sort(next.lost);
    next.ids.insert(next.ids.end(), next.joined.begin(), next.joined.end());
    std::ranges::sort(next.ids);
    members_.clear();
    for (const MemberId id : next.ids) members_[id] = {};
    first_report_.reset();
    return next;
  }

 private:
  struct Member {
    bool has_reported = false;
    std::uint64_t committed = 0;
  };

  bool is_due(Time now) const {
    if (members_.empty()) return !candidates_.empty() && candidates_.size() >= least_;
    const auto has_reported = [](const auto& member) { return member.second.has_reported; };
    if (std::ranges::all_of(members_, has_reported)) return true;
    return first_report_.has_value() && now - *first_report_ >= grace_;
  }

  const Communicator::Duration grace_;
  std::uint64_t epoch_ = 0;
  MemberId last_id_ = 0;
  std::uint64_t least_ = 1;
  std::map<MemberId, Member> members_;  // of the present epoch, as far as they live
  std::vector<MemberId> lost_;          // since the present epoch began
  std::vector<MemberId> candidates_;
  std::optional<Time> first_report_;
};

// A membership as text, for a reply of the server.
inline std::string write_membership(const Membership& membership) {
  std::string text = text_of(membership.epoch, " ", membership.committed);
  for (const auto* list : {&membership.ids, &membership.lost, &membership.joined}) {
    text += text_of(" ", list->size());
    for (const MemberId id : *list) text += text_of(" ", id);
  }
  return text;
}

// CommError if the text is none.
inline Membership read_membership(const std::string& text) {
  constexpr std::size_t kMostMembers = 65536;
  std::istringstream in(text);
  Membership membership;
  in >> membership.epoch >> membership.committed;
  for (auto* list : {&membership.ids, &membership.lost, &membership.joined}) {
    std::size_t size = 0;
    in >> size;
    if (!in || size > kMostMembers) fail<CommError>("rendezvous: a membership that cannot be read: ", text);
    list->resize(size);
    for (MemberId& id : *list) in >> id;
  }
  if (!in || membership.ids.empty()) fail<CommError>("rendezvous: a membership that cannot be read: ", text);
  return membership;
}

}  // namespace oktopk
