// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/arbiter.h"

#include <algorithm>
#include <chrono>

#include "oktopk/base/error.h"

namespace oktopk::faults {
namespace {

// Longer than the timeout of a communicator: whoever waits for a silent member comes, too.
constexpr Duration kPatience = std::chrono::seconds(200);
constexpr Duration kLongestAnswer = std::chrono::hours(24);

}  // namespace

void Arbiter::found(const std::vector<int>& actors) {
  Membership membership{.epoch = 1};
  for (const int actor : actors) {
    actors_[++last_id_] = actor;
    membership.ids.push_back(last_id_);
  }
  membership.joined = membership.ids;
  World& world = network_.open(actors, std::chrono::seconds(60));
  for (std::size_t r = 0; r < actors.size(); ++r) first_[membership.ids[r]] = {membership, &world, static_cast<int>(r)};
  epochs_.push_back(membership);
}

// Now and then a request or an answer takes longer than a pause or a death of its member.
Duration Arbiter::travel() {
  Random& random = network_.scheduler().random();
  return std::chrono::microseconds(1 + random.below(std::uint64_t{1} << random.below(22)));
}

void Arbiter::ask(MemberId id, std::uint64_t epoch, std::uint64_t committed, const Reply& reply) {
  network_.scheduler().after(travel(), [=, this] { arrive(id, epoch, {committed, reply}); });
}

MemberId Arbiter::ask_to_join(int actor, const Reply& reply) {
  const MemberId id = ++last_id_;
  actors_[id] = actor;
  network_.scheduler().after(travel(), [=, this] { joiners_[id] = reply; });
  return id;
}

void Arbiter::leave(MemberId id) {
  left_.insert(id);
  look(epochs_.back().epoch, true);
}

void Arbiter::arrive(MemberId id, std::uint64_t epoch, const Request& request) {
  network_.scheduler().note(
      text_of("arbiter: member ", id, " of epoch ", epoch, " asks, committed ", request.committed));
  if (epoch != epochs_.back().epoch) return answer(request.reply, {epochs_.back()});  // given up
  if (asked_.empty()) network_.scheduler().after(kPatience, [this, epoch] { look(epoch, false); });
  asked_[id] = request;
  look(epoch, true);
}

void Arbiter::look(std::uint64_t epoch, bool is_patient) {
  if (epoch != epochs_.back().epoch || asked_.empty()) return;
  const auto has_come = [&](MemberId id) { return asked_.contains(id) || left_.contains(id); };
  if (!is_patient || std::ranges::all_of(epochs_.back().ids, has_come)) decide();
}

void Arbiter::decide() {
  const Membership& last = epochs_.back();
  Membership next{.epoch = last.epoch + 1};
  for (const MemberId id : last.ids) (asked_.contains(id) ? next.ids : next.lost).push_back(id);
  for (const auto& [id, request] : asked_) next.committed = std::max(next.committed, request.committed);
  for (const auto& [id, reply] : joiners_) {
    next.ids.push_back(id);
    next.joined.push_back(id);
  }
  std::ranges::sort(next.ids);
  std::vector<int> actors;
  for (const MemberId id : next.ids) actors.push_back(actors_.at(id));
  World& world = network_.open(actors, std::chrono::seconds(60));
  network_.scheduler().note(text_of("arbiter: epoch ", next.epoch, " of ", next.ids.size(), " members, ",
                                    next.lost.size(), " lost, ", next.joined.size(), " joined, committed ",
                                    next.committed));
  for (std::size_t r = 0; r < next.ids.size(); ++r) {
    const auto asked = asked_.find(next.ids[r]);
    answer(asked != asked_.end() ? asked->second.reply : joiners_.at(next.ids[r]), {next, &world, static_cast<int>(r)});
  }
  asked_.clear();
  joiners_.clear();
  epochs_.push_back(std::move(next));
}

void Arbiter::answer(const Reply& reply, const Answer& answer) {
  network_.scheduler().after(travel(), [reply, answer] { *reply = answer; });
}

FaultMember::FaultMember(Arbiter& arbiter, MemberId id, int actor, double stall)
    : arbiter_(arbiter), id_(id), actor_(actor), stall_(stall) {
  take(arbiter.founded(id));
}

FaultMember::FaultMember(Arbiter& arbiter, int actor, double stall) : arbiter_(arbiter), actor_(actor), stall_(stall) {
  const auto answer = std::make_shared<std::optional<Arbiter::Answer>>();
  id_ = arbiter.ask_to_join(actor, answer);
  await(answer);
}

FaultMember::~FaultMember() {
  // A process that was killed tells nobody.
  if (!arbiter_.network().scheduler().is_killed(actor_)) arbiter_.leave(id_);
}

const Membership& FaultMember::regroup(std::uint64_t committed) {
  comm_->kill();  // whoever still waits in this epoch learns that it is over
  const auto answer = std::make_shared<std::optional<Arbiter::Answer>>();
  arbiter_.ask(id_, membership_.epoch, committed, answer);
  await(answer);
  return membership_;
}

void FaultMember::await(const std::shared_ptr<std::optional<Arbiter::Answer>>& answer) {
  const auto has_come = [&] { return answer->has_value(); };
  if (!arbiter_.network().scheduler().wait(actor_, kLongestAnswer, has_come, "the arbiter"))
    fail<CommError>("member ", id_, ": no answer from the arbiter");
  if ((*answer)->world == nullptr)
    fail<CommError>("member ", id_, " of epoch ", membership_.epoch, " was given up: the world is in epoch ",
                    (*answer)->membership.epoch);
  take(**answer);
}

void FaultMember::take(const Arbiter::Answer& answer) {
  membership_ = answer.membership;
  comm_ = std::make_unique<FaultCommunicator>(arbiter_.network(), *answer.world, answer.rank, stall_);
}

}  // namespace oktopk::faults
