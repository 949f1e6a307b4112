// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/arbiter_host.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/comm/rendezvous/times.h"
#include "oktopk/comm/transports.h"

namespace oktopk::faults {
namespace {

using namespace rendezvous;

const RendezvousServerOptions kServer;  // as a user leaves it
// Whoever is cut off for less must not be lost: it still has to come back after that.
constexpr Duration kHarmlessCut = std::chrono::milliseconds(700);

}  // namespace

ArbiterHost::ArbiterHost(Network& network, std::vector<ArbiterFault> faults)
    : network_(network), faults_(std::move(faults)) {
  for (const ArbiterFault& fault : faults_) longest_answer_ += fault.delay + fault.length + kGrace;
  start({});
}

void ArbiterHost::start(const ArbiterState& state) {
  ++incarnation_;
  const ArbiterOptions options{.grace = kGrace,
                               .reattach = kServer.reattach,
                               .settle = kServer.settle,
                               .random = [this] { return 1 + scheduler().random().below(1'000'000); },
                               .log = [this](const std::string& text) { scheduler().note("arbiter: " + text); }};
  arbiter_ = std::make_unique<Arbiter>(options, now(), state);
  ticks_ = false;
  if (!links_.empty()) tick();
}

void ArbiterHost::end() {
  arbiter_.reset();
  ++incarnation_;
  is_stopped_ = false;
  queue_.clear();
  current_.clear();
  for (auto& [number, connection] : std::exchange(connections_, {}))
    scheduler().after(travel(), [link = connection.link, number = number] { link->lose(number); });
}

// As the server's loop: time alone may make a decision due.
void ArbiterHost::tick() {
  ticks_ = std::ranges::any_of(links_, [](const auto& one) { return !one.second->is_over(); });
  if (ticks_) scheduler().after(kTurn, [this, mine = incarnation_] { handle(mine, [this] { tick(); }); });
}

// Most take less than a millisecond, some so long that a connection that breaks meanwhile is made again.
Duration ArbiterHost::travel() {
  Random& random = scheduler().random();
  return std::chrono::microseconds(1 + random.below(std::uint64_t{1} << random.below(18)));
}

void ArbiterHost::handle(std::uint64_t incarnation, const Event& event) {
  if (incarnation != incarnation_ || arbiter_ == nullptr) return;
  if (is_stopped_) return queue_.push_back(event);
  event();
  look();
}

void ArbiterHost::travel_to_arbiter(std::uint64_t number, const Event& event) {
  const auto at = connections_.find(number);
  if (at == connections_.end() || at->second.is_lost) return;
  Connection& connection = at->second;
  connection.last_arrival = std::max(connection.last_arrival, scheduler().now() + travel());
  scheduler().after(connection.last_arrival - scheduler().now(),
                    [=, this, mine = connection.incarnation] { handle(mine, event); });
}

std::uint64_t ArbiterHost::connect(const std::shared_ptr<FaultLink>& link) {
  links_[link->token()] = link;
  if (arbiter_ == nullptr || scheduler().now() < cut_until_[link->actor()]) return 0;
  connections_[++last_connection_] = {.link = link, .incarnation = incarnation_, .word = {}};
  if (!ticks_) tick();
  return last_connection_;
}

void ArbiterHost::say(std::uint64_t connection, const MemberWord& word) {
  travel_to_arbiter(connection, [=, this] { receive(connection, word); });
}

void ArbiterHost::close(std::uint64_t connection, bool is_silent) {
  if (!is_silent) travel_to_arbiter(connection, [=, this] { forget(connection); });
}

void ArbiterHost::forget(std::uint64_t number) {
  const auto at = connections_.find(number);
  if (at == connections_.end()) return;
  const std::uint64_t token = at->second.link->token();
  connections_.erase(at);
  if (current_[token] != number) return;
  current_[token] = 0;
  arbiter_->detach(token, now());
}

// As RendezvousServer: a new connection takes the place of the one before, whose last words may come later.
void ArbiterHost::receive(std::uint64_t number, const MemberWord& word) {
  strike(false, words_++);
  const auto at = connections_.find(number);
  if (at == connections_.end()) return;
  const auto before = connections_.find(current_[word.token]);
  if (before != connections_.end() && before != at) {
    if (before->second.number > word.number) return;
    before->second.word.reset();
  }
  current_[word.token] = number;
  at->second.number = word.number;
  at->second.word = word;
  at->second.hold = scheduler().now();
  if (word.want == MemberWord::Want::regroup) {
    at->second.hold += kHold;
    scheduler().after(kHold, [=, this, mine = incarnation_] { handle(mine, [=, this] { answer(number); }); });
  }
  answer(number);
}

void ArbiterHost::answer(std::uint64_t number) {
  const auto at = connections_.find(number);
  if (at == connections_.end() || !at->second.word.has_value()) return;
  Connection& connection = at->second;
  const ArbiterAnswer answer = arbiter_->hear(*connection.word, now());
  if (answer.kind == ArbiterAnswer::Kind::wait && scheduler().now() < connection.hold) return;
  const MemberWord word = *std::exchange(connection.word, {});
  if (word.want == MemberWord::Want::leave) current_[word.token] = 0;
  if (connection.is_lost) return;
  scheduler().after(travel(), [=, link = connection.link] { link->hear(number, word, answer); });
}

void ArbiterHost::look() {
  if (arbiter_ == nullptr || is_stopped_) return;
  const Membership last = arbiter_->present();
  const bool is_new = arbiter_->decide(now());
  saved_ = arbiter_->state();
  if (is_new) {
    epochs_.push_back(arbiter_->present());
    check_decision(last, arbiter_->present());
    open_world();
    strike(true, epochs_.size() - 1);
  }
  if (!is_new || arbiter_ == nullptr || is_stopped_) return;
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, connection] : connections_) numbers.push_back(number);
  for (const std::uint64_t number : numbers) answer(number);
}

void ArbiterHost::open_world() {
  const Membership& present = arbiter_->present();
  tokens_ = arbiter_->state().tokens;
  std::vector<int> actors;
  for (const MemberId id : present.ids) actors.push_back(links_.at(tokens_.at(id))->actor());
  worlds_[{present.run, present.epoch, present.ids}] = &network_.open(actors, std::chrono::seconds(60));
}

bool ArbiterHost::is_sound(const FaultLink& link) {
  const int actor = link.actor();
  return !link.is_over() && !link.was_cut() && !scheduler().is_killed(actor) && !scheduler().is_done(actor) &&
         !scheduler().is_paused(actor) && scheduler().awake_since(actor) == Duration{};
}

void ArbiterHost::check_decision(const Membership& last, const Membership& next) {
  for (const auto& [token, link] : links_) {
    const MemberWord& word = link->side().word();
    if (word.id == 0 || !link->side().refusal().empty() || !is_sound(*link)) continue;
    if (word.last.run != next.run)
      scheduler().failure(text_of("a second job begins beside member ", word.id, " of epoch ", word.last.epoch));
    else if (last.run == next.run && std::ranges::find(next.lost, word.id) != next.lost.end())
      scheduler().failure(text_of("sound member ", word.id, " is lost"));
  }
}

void ArbiterHost::strike(bool is_decision, std::uint64_t number) {
  for (const ArbiterFault& fault : faults_) {
    if (fault.is_at_decision != is_decision || fault.at != number) continue;
    if (fault.delay.count() > 0)
      scheduler().after(fault.delay, [=, this] { strike(fault); });
    else
      strike(fault);
  }
}

void ArbiterHost::strike(const ArbiterFault& fault) {
  if (arbiter_ == nullptr) return;
  ++struck_;
  scheduler().note(describe(fault));
  switch (fault.kind) {
    case ArbiterFaultKind::stop:
      return stop(fault.length);
    case ArbiterFaultKind::restart:
    case ArbiterFaultKind::restart_with_state:
      return restart(fault.length, fault.kind == ArbiterFaultKind::restart_with_state);
    case ArbiterFaultKind::cut:
    case ArbiterFaultKind::reset:
      return lose_connections(fault);
  }
}

void ArbiterHost::stop(Duration length) {
  if (is_stopped_) return;
  is_stopped_ = true;
  scheduler().after(length, [=, this, mine = incarnation_] {
    if (mine != incarnation_) return;
    is_stopped_ = false;
    if (length > kStall) arbiter_->slept(length);
    for (const Event& event : std::exchange(queue_, {})) handle(mine, event);
  });
}

void ArbiterHost::restart(Duration length, bool has_state) {
  end();
  scheduler().after(length, [=, this] { start(has_state ? saved_ : ArbiterState{}); });
}

void ArbiterHost::lose_connections(const ArbiterFault& fault) {
  const bool is_cut = fault.kind == ArbiterFaultKind::cut;
  for (const auto& [token, link] : links_) {
    if ((fault.actors >> link->actor() & 1) == 0) continue;
    if (is_cut) cut_until_[link->actor()] = scheduler().now() + fault.length;
    if (is_cut && (fault.is_silent || fault.length > kHarmlessCut)) link->note_cut();
  }
  for (auto& [number, connection] : connections_) {
    if ((fault.actors >> connection.link->actor() & 1) == 0) continue;
    if (!fault.is_silent) {
      close(number, false);
      scheduler().after(travel(), [link = connection.link, number = number] { link->lose(number); });
    }
    connection.is_lost = true;
  }
}

}  // namespace oktopk::faults
