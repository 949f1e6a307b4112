// SPDX-License-Identifier: Apache-2.0
// How ranks that are threads match messages, wait, die and split (thread_world.h).
#include "oktopk/comm/thread_world.h"

#include <algorithm>
#include <thread>

#include "oktopk/base/error.h"
#include "oktopk/comm/transport_support.h"

namespace oktopk {
namespace {

using Clock = std::chrono::steady_clock;

// Giving the core away a few times is cheaper than sleeping when the peer is about to answer.
constexpr int kYieldsBeforeSleep = 16;

}  // namespace

ThreadWorld::ThreadWorld(int size, Communicator::Duration timeout)
    : P_(size),
      timeout_(std::min(timeout, kLongestTimeout)),
      channels_(static_cast<std::size_t>(size) * static_cast<std::size_t>(size)),
      seats_(static_cast<std::size_t>(size)) {}

void ThreadWorld::Channel::push(Slot& slot) {
  slot.posted = true;
  slot.next = nullptr;
  (first == nullptr ? first : last->next) = &slot;
  last = &slot;
}

void ThreadWorld::Channel::remove(Slot& slot) {
  Slot* before = nullptr;
  for (Slot* at = first; at != &slot; at = at->next) before = at;
  (before == nullptr ? first : before->next) = slot.next;
  if (last == &slot) last = before;
  slot.posted = false;
}

ThreadWorld::Channel& ThreadWorld::channel(int from, int to) {
  return channels_[static_cast<std::size_t>(from) * static_cast<std::size_t>(P_) + static_cast<std::size_t>(to)];
}

ThreadWorld::Channel& ThreadWorld::channel(const Slot& slot) {
  return slot.recv == nullptr ? channel(slot.owner, slot.peer) : channel(slot.peer, slot.owner);
}

void ThreadWorld::post(Operation& operation) {
  // Set before the first slot can be completed by a peer.
  operation.open.store(operation.slots.size());
  for (Slot& slot : operation.slots) post(slot);
}

void ThreadWorld::post(Slot& slot) {
  Channel& at = channel(slot);
  const std::lock_guard lock(at.mutex);
  Slot* const match = at.first;
  const bool is_send = slot.recv == nullptr;
  if (match == nullptr || (match->recv == nullptr) == is_send) {
    at.push(slot);
    if (at.closed) {
      kill(slot.owner, text_of("rank ", slot.owner, " waits for rank ", slot.peer, ", which left"));
    }
    return;
  }
  const Slot& send = is_send ? slot : *match;
  Recv& recv = is_send ? *match->recv : *slot.recv;
  if (send.source.size() > recv.buffer.size()) {
    at.push(slot);
    kill(send.peer, text_of("rank ", send.peer, " received ", send.source.size(), " bytes from rank ", send.owner,
                         ", capacity ", recv.buffer.size()));
    return;
  }
  std::copy(send.source.begin(), send.source.end(), recv.buffer.begin());
  recv.size = send.source.size();
  at.remove(*match);
  complete(*match);
  complete(slot);
}

void ThreadWorld::complete(const Slot& slot) {
  // At zero the owner may reuse the operation with its slots; its seat stays.
  Seat& place = seat(slot.owner);
  if (slot.operation->open.fetch_sub(1) > 1) return;
  { const std::lock_guard lock(place.mutex); }
  place.wake.notify_one();
}

bool ThreadWorld::sleep(int rank, const Operation& operation) {
  const auto is_over = [&] { return operation.open.load() == 0 || is_dead(); };
  for (int i = 0; i < kYieldsBeforeSleep; ++i) {
    if (is_over()) return true;
    std::this_thread::yield();
  }
  std::unique_lock lock(seat(rank).mutex);
  return seat(rank).wake.wait_until(lock, Clock::now() + timeout_, is_over);
}

void ThreadWorld::await(int rank, Operation& operation) {
  if (!sleep(rank, operation)) {
    std::vector<int> silent = silent_peers(operation);
    if (!silent.empty()) kill(rank, text_of("rank ", rank, ": ", no_answer(timeout_, std::move(silent))));
  }
  // Looked at last: a message that overtook one withdrawn from a dead world must not count.
  if (!is_dead()) return;
  withdraw(operation);
  throw_dead(rank);
}

std::vector<int> ThreadWorld::silent_peers(const Operation& operation) {
  std::vector<int> peers;
  for (const Slot& slot : operation.slots) {
    const std::lock_guard lock(channel(slot).mutex);
    if (slot.posted) peers.push_back(slot.peer);
  }
  return peers;
}

void ThreadWorld::withdraw(Operation& operation) {
  for (Slot& slot : operation.slots) {
    Channel& at = channel(slot);
    const std::lock_guard lock(at.mutex);
    if (slot.posted) at.remove(slot);
  }
}

void ThreadWorld::kill(int rank, const std::string& reason) {
  std::vector<std::weak_ptr<ThreadWorld>> children;
  {
    const std::lock_guard lock(mutex_);
    if (is_dead()) return;
    killer_ = rank;
    reason_ = reason;
    dead_ = true;
    children = children_;
  }
  for (Seat& place : seats_) {
    // Without the lock, a rank between its look at dead_ and its sleep would not be woken.
    { const std::lock_guard lock(place.mutex); }
    place.wake.notify_all();
  }
  for (const auto& child : children) {
    if (const auto world = child.lock()) world->kill(rank, reason);
  }
}

int ThreadWorld::killer() {
  const std::lock_guard lock(mutex_);
  return killer_;
}

void ThreadWorld::throw_dead(int rank) {
  const std::lock_guard lock(mutex_);
  fail<CommError>("threads: rank ", rank, ": the world is dead: ", reason_);
}

void ThreadWorld::leave(int rank) {
  bool is_missed = false;
  const auto close = [&](Channel& end) {
    const std::lock_guard lock(end.mutex);
    end.closed = true;
    is_missed = is_missed || end.first != nullptr;
  };
  for (int peer = 0; peer < P_; ++peer) {
    close(channel(rank, peer));
    close(channel(peer, rank));
  }
  if (is_missed) kill(rank, text_of("rank ", rank, " left while others waited for it"));
}

std::shared_ptr<ThreadWorld> ThreadWorld::part(int turn, const std::vector<int>& members) {
  const std::lock_guard lock(mutex_);
  if (is_dead()) fail<CommError>("threads: split: the world is dead: ", reason_);
  NewPart& part = new_parts_[{turn, members.front()}];
  if (part.world == nullptr) {
    part.world = std::make_shared<ThreadWorld>(static_cast<int>(members.size()), timeout_);
    std::erase_if(children_, [](const auto& child) { return child.expired(); });
    children_.push_back(part.world);
  }
  const std::shared_ptr<ThreadWorld> world = part.world;
  if (++part.taken == members.size()) new_parts_.erase({turn, members.front()});
  return world;
}

}  // namespace oktopk
