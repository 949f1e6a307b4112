// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/network.h"

#include <algorithm>
#include <chrono>

#include "oktopk/base/error.h"
#include "oktopk/comm/transport_support.h"

namespace oktopk::faults {
namespace {

constexpr std::size_t kOldFrames = 16;

}  // namespace

World& Network::open(const std::vector<int>& actors, Duration timeout) {
  worlds_.push_back(std::make_unique<World>());
  World& world = *worlds_.back();
  world.index = world.parent = worlds_.size() - 1;
  world.epoch = ++epoch_;
  world.timeout = timeout;
  const std::size_t P = actors.size();
  for (std::size_t r = 0; r < P; ++r) {
    const int rank = static_cast<int>(r);
    world.names.push_back(rank);
    world.seats.push_back({.world = &world,
                           .rank = rank,
                           .actor = actors[r],
                           .reason = {},
                           .inbox = {},
                           .posted = {},
                           .gone = {},
                           .last_arrival = {}});
    Seat& seat = world.seats.back();
    seat.inbox.resize(P);
    seat.posted.resize(P);
    seat.gone.resize(P);
    seat.last_arrival.resize(P);
  }
  faulty_.clear();
  if (weather_.repeats_old_frames) repeat_old_frames();
  return world;
}

World& Network::part(World& whole, int turn, const std::vector<int>& members) {
  const auto [at, is_new] = parts_.try_emplace({whole.index, turn, members.front()}, worlds_.size());
  if (!is_new) return *worlds_[at->second];
  std::vector<int> actors;
  for (const int member : members) actors.push_back(whole.seats[static_cast<std::size_t>(member)].actor);
  const auto faulty = faulty_;
  const bool repeats = std::exchange(weather_.repeats_old_frames, false);
  World& world = open(actors, whole.timeout);
  weather_.repeats_old_frames = repeats;
  faulty_ = faulty;
  world.epoch = whole.epoch;
  epoch_ = std::max(epoch_ - 1, whole.epoch);
  world.parent = whole.index;
  for (std::size_t r = 0; r < members.size(); ++r) world.names[r] = whole.names[static_cast<std::size_t>(members[r])];
  return world;
}

void Network::arm(int actor, const Fault& fault) { hosts_[actor].faults.push_back(fault); }
void Network::disarm_flips(int actor) { hosts_[actor].may_flip = false; }

Duration Network::latency() {
  Random& random = scheduler_.random();
  const Duration most = random.uniform() < weather_.slow ? weather_.slowest : weather_.latency;
  return Duration(1 + static_cast<Duration::rep>(random.below(static_cast<std::uint64_t>(most.count()))));
}

void Network::send(Seat& from, int to, std::span<const std::byte> bytes) {
  Frame frame{from.world->index, from.rank, to, Bytes(bytes.begin(), bytes.end())};
  if (to != from.rank) maybe_flip(from, frame.bytes);
  Duration& last = from.last_arrival[static_cast<std::size_t>(to)];
  last = std::max(last, scheduler_.now() + latency());
  if (old_.size() >= kOldFrames) old_.pop_front();
  old_.push_back(frame);
  scheduler_.after(last - scheduler_.now(), [this, frame = std::move(frame)] { deliver(frame); });
}

void Network::deliver(const Frame& frame) {
  World& world = *worlds_[frame.world];
  const bool is_old = world.epoch != epoch_;
  World* target = &world;
  if (is_old && weather_.takes_old_frames) target = worlds_.back().get();
  // An old frame comes to the address where the new epoch listens; its number tells.
  if (is_old && target == &world && world.seats[static_cast<std::size_t>(frame.to)].is_closed) ++refused_;
  if (frame.to >= static_cast<int>(target->seats.size()) || frame.from >= static_cast<int>(target->seats.size()))
    return;
  Seat& seat = target->seats[static_cast<std::size_t>(frame.to)];
  const auto from = static_cast<std::size_t>(frame.from);
  if (seat.is_dead || seat.is_closed || !seat.gone[from].empty()) return;
  seat.inbox[from].push_back(frame.bytes);
  match(seat, frame.from);
}

void Network::match(Seat& seat, int peer) {
  auto& inbox = seat.inbox[static_cast<std::size_t>(peer)];
  auto& posted = seat.posted[static_cast<std::size_t>(peer)];
  while (!seat.is_dead && !inbox.empty() && !posted.empty()) {
    const Bytes bytes = std::move(inbox.front());
    const Posted to = posted.front();
    inbox.pop_front();
    if (bytes.size() > to.recv->buffer.size())
      return die(seat,
                 text_of("received ", bytes.size(), " bytes from rank ",
                         seat.world->names[static_cast<std::size_t>(peer)], ", capacity ", to.recv->buffer.size()));
    posted.pop_front();
    std::copy(bytes.begin(), bytes.end(), to.recv->buffer.begin());
    to.recv->size = bytes.size();
    --to.operation->open;
  }
  const std::string& gone = seat.gone[static_cast<std::size_t>(peer)];
  if (!seat.is_dead && !posted.empty() && !gone.empty()) die(seat, gone);
}

void Network::die(Seat& seat, const std::string& reason) {
  if (seat.is_dead || seat.is_closed) return;
  World& world = *seat.world;
  const int name = world.names[static_cast<std::size_t>(seat.rank)];
  seat.is_dead = true;
  seat.reason = reason;
  scheduler_.note(text_of("epoch ", world.epoch, " rank ", name, ": dead: ", reason));
  for (int peer = 0; peer < static_cast<int>(world.seats.size()); ++peer)
    if (peer != seat.rank) tell(world, seat.rank, peer, text_of("told by rank ", name, ": ", reason), latency());
  for (std::size_t w = 0; w < worlds_.size(); ++w)
    if (worlds_[w]->parent == world.index && w != world.index)
      for (Seat& other : worlds_[w]->seats)
        if (other.actor == seat.actor) die(other, reason);
}

// The seat `to` learns that nothing will come from `from` any more, and why: its end dies at once.
void Network::tell(World& world, int from, int to, const std::string& reason, Duration delay) {
  scheduler_.after(delay, [this, &world, from, to, reason] {
    Seat& seat = world.seats[static_cast<std::size_t>(to)];
    if (seat.gone[static_cast<std::size_t>(from)].empty()) seat.gone[static_cast<std::size_t>(from)] = reason;
    lose(seat, reason);
  });
}

void Network::lose(Seat& seat, const std::string& reason) {
  if (!scheduler_.is_killed(seat.actor)) die(seat, reason);
}

// In order behind the frames: a peer that waits for nothing more is not disturbed.
void Network::close(Seat& seat) {
  if (seat.is_closed) return;
  seat.is_closed = true;
  World& world = *seat.world;
  const std::string who = text_of("rank ", world.names[static_cast<std::size_t>(seat.rank)]);
  const std::string reason = seat.is_dead ? text_of("told by ", who, ": ", seat.reason) : who + " left";
  for (int peer = 0; peer < static_cast<int>(world.seats.size()); ++peer) {
    Duration& last = seat.last_arrival[static_cast<std::size_t>(peer)];
    last = std::max(last, scheduler_.now() + latency());
    scheduler_.after(last - scheduler_.now(), [this, &world, from = seat.rank, peer, reason] {
      Seat& other = world.seats[static_cast<std::size_t>(peer)];
      std::string& gone = other.gone[static_cast<std::size_t>(from)];
      if (gone.empty()) gone = reason;
      if (!other.is_closed && !other.is_dead) match(other, from);
    });
  }
}

void Network::waits(const Seat& seat, const Operation* operation) {
  Host& host = hosts_[seat.actor];
  host.waiting = &seat;
  host.operation = operation;
}

// Asks the ranks, as heartbeats would, who waits for whom, and follows the chain to those that do not answer. A rank
// that has failed already answers with its reason.
std::string Network::blame(const Seat& seat, const Operation& operation) const {
  std::set<int> guilty, seen;
  std::vector<std::pair<const Seat*, const Operation*>> todo = {{&seat, &operation}};
  while (!todo.empty()) {
    const auto [at, what] = todo.back();
    todo.pop_back();
    if (!seen.insert(at->actor).second) continue;
    const auto name = [&](int rank) { return at->world->names[static_cast<std::size_t>(rank)]; };
    if (scheduler_.awake_since(at->actor) > what->begun) guilty.insert(name(at->rank));
    for (const int peer : what->peers) {
      if (at->posted[static_cast<std::size_t>(peer)].empty()) continue;
      const Seat& other = at->world->seats[static_cast<std::size_t>(peer)];
      if (other.is_dead) return text_of("told by rank ", name(peer), ": ", other.reason);
      const auto host = hosts_.find(other.actor);
      if (answers(other.actor) && host != hosts_.end() && host->second.operation != nullptr)
        todo.emplace_back(host->second.waiting, host->second.operation);
      else
        guilty.insert(name(peer));
    }
  }
  if (guilty.empty()) guilty.insert(seat.world->names[static_cast<std::size_t>(seat.rank)]);
  return no_answer(seat.world->timeout, {guilty.begin(), guilty.end()});
}

bool Network::answers(int actor) const {
  return !scheduler_.is_killed(actor) && !scheduler_.is_paused(actor) && !scheduler_.is_done(actor);
}

// The faults.

template <class Visit>
void Network::for_each_seat(int actor, Visit visit) {
  for (std::size_t w = 0; w < worlds_.size(); ++w)
    for (Seat& seat : worlds_[w]->seats)
      if (seat.actor == actor && !seat.is_closed) visit(seat);
}

std::size_t Network::enter(Seat& seat, std::size_t sends) {
  Host& host = hosts_[seat.actor];
  const std::uint64_t number = host.operations++;
  for (const Fault fault : std::vector(host.faults)) {
    if (fault.at != number || fault.kind == FaultKind::flip) continue;
    if (fault.delay.count() > 0)
      scheduler_.after(fault.delay, [this, &seat, fault] { strike(seat, fault); });
    else
      strike(seat, fault);
  }
  if (!scheduler_.is_killed(seat.actor)) return sends;
  return scheduler_.random().below(sends + 1);
}

void Network::strike(Seat& seat, const Fault& fault) {
  if (scheduler_.is_done(seat.actor) || scheduler_.is_killed(seat.actor)) return;
  ++struck_;
  const World& first = *worlds_[seat.world->index];
  if (first.epoch == epoch_) faulty_.insert(fault.rank);
  scheduler_.note(describe(fault));
  switch (fault.kind) {
    case FaultKind::crash:
      return crash(seat.actor, false);
    case FaultKind::vanish:
      return crash(seat.actor, true);
    case FaultKind::pause:
      scheduler_.pause(seat.actor);
      return scheduler_.after(fault.length, [this, actor = seat.actor] { scheduler_.resume(actor); });
    case FaultKind::cut:
      if (first.epoch == epoch_) faulty_.insert(fault.peer);
      return break_connection(seat.actor, fault.peer);
    case FaultKind::flip:
      return;
  }
}

void Network::crash(int actor, bool is_silent) {
  for_each_seat(actor, [&](Seat& seat) {
    World& world = *seat.world;
    seat.is_closed = true;
    const std::string reason = text_of("lost rank ", world.names[static_cast<std::size_t>(seat.rank)]);
    for (int peer = 0; !is_silent && peer < static_cast<int>(world.seats.size()); ++peer)
      if (peer != seat.rank) tell(world, seat.rank, peer, reason, latency());
  });
  scheduler_.kill(actor);
}

void Network::break_connection(int actor, int peer) {
  for_each_seat(actor, [&](Seat& seat) {
    World& world = *seat.world;
    const auto other = std::find(world.names.begin(), world.names.end(), peer);
    if (other == world.names.end() || *other == world.names[static_cast<std::size_t>(seat.rank)]) return;
    const int rank = static_cast<int>(other - world.names.begin());
    tell(world, rank, seat.rank, text_of("lost rank ", peer), latency());
    tell(world, seat.rank, rank, text_of("lost rank ", world.names[static_cast<std::size_t>(seat.rank)]), latency());
  });
}

void Network::maybe_flip(Seat& from, Bytes& bytes) {
  Host& host = hosts_[from.actor];
  for (Fault& fault : host.faults) {
    if (fault.kind != FaultKind::flip || host.operations < fault.at || bytes.empty() || !host.may_flip) continue;
    const std::size_t bit = scheduler_.random().below(bytes.size() * 8);
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    const Fault struck = fault;
    fault.at = ~std::uint64_t{0};  // once only
    ++struck_;
    for (const int name : worlds_[from.world->index]->names)  // blocks are forwarded unopened: anyone may find it
      if (from.world->epoch == epoch_) faulty_.insert(name);
    return scheduler_.note(text_of(describe(struck), ": bit ", bit, " of ", bytes.size(), " bytes"));
  }
}

// Frames of the epoch before arrive once more, as by a connection that was made twice.
void Network::repeat_old_frames() {
  for (const Frame& frame : old_) {
    const Duration delay = latency() * static_cast<Duration::rep>(scheduler_.random().below(4));
    if (worlds_[frame.world]->epoch < epoch_) scheduler_.after(delay, [this, frame] { deliver(frame); });
  }
}

}  // namespace oktopk::faults
