// SPDX-License-Identifier: Apache-2.0
// The faults of the simulated network (network.h).
#include <algorithm>

#include "oktopk/base/error.h"
#include "tests/faults/network.h"

namespace oktopk::faults {

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
