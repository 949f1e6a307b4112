// SPDX-License-Identifier: Apache-2.0
// Transport "threads" (transports.h): a communicator is one rank of a ThreadWorld. Operations are pooled, so that a
// warm communicator starts exchanges without allocating.
#include "oktopk/comm/transports.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/base/process_mark.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/comm/transport_support.h"

namespace oktopk {
namespace {

// The state that the ranks share. One channel per ordered pair of ranks holds the sends and receives that were posted
// and not yet matched, first in first out. The side that comes second copies, under the channel's lock. withdraw()
// locks each channel of an operation: afterwards no copy is in progress, and the buffers may be freed. Locks nest in
// this order: Channel, World, Seat.
// COST: per message one copy, three lock operations, at most one wake-up, no allocation.
class ThreadWorld {
 public:
  struct Operation;

  // One send or receive of an operation. Once it is posted, its channel's lock guards it.
  struct Slot {
    Operation* operation = nullptr;
    int owner = 0;
    int peer = 0;
    std::span<const std::byte> source;  // of a send
    Recv* recv = nullptr;               // of a receive; null for a send
    Slot* next = nullptr;
    bool posted = false;
  };

  // The messages of one start(): complete when no slot is open.
  struct Operation {
    std::atomic<std::size_t> open = 0;
    std::vector<Slot> slots;  // does not grow while in flight
  };

  // In a child of fork() it stays: threads that are not there may hold its locks for ever.
  static std::shared_ptr<ThreadWorld> make(int size, Communicator::Duration timeout) {
    return {new ThreadWorld(size, timeout), [](ThreadWorld* world) {
              if (!world->is_forked()) delete world;
            }};
  }

  ThreadWorld(int size, Communicator::Duration timeout)
      : P_(size),
        timeout_(std::min(timeout, kLongestTimeout)),
        channels_(static_cast<std::size_t>(size) * static_cast<std::size_t>(size)),
        seats_(static_cast<std::size_t>(size)) {}

  int size() const { return P_; }
  Communicator::Duration timeout() const { return timeout_; }
  bool is_dead() const { return dead_.load(); }
  bool is_forked() const { return mark_.is_forked(); }

  // The rank that killed the world; -1 while it lives.
  int killer() {
    const std::lock_guard lock(mutex_);
    return killer_;
  }

  [[noreturn]] void throw_dead(int rank) {
    const std::lock_guard lock(mutex_);
    fail<CommError>("threads: rank ", rank, ": the world is dead: ", reason_);
  }

  // Matches every slot with a slot of the peer, or leaves it for the peer to match.
  void post(Operation& operation) {
    // Set before the first slot can be completed by a peer.
    operation.open.store(operation.slots.size());
    for (Slot& slot : operation.slots) post(slot);
  }

  // Sleeps until the operation is complete. On timeout kills the world, withdraws and throws.
  void await(int rank, Operation& operation) {
    Seat& place = seats_[static_cast<std::size_t>(rank)];
    place.waits_for = &operation;
    if (!sleep(place, operation)) {
      std::vector<int> silent = culprits(rank, operation);
      if (!silent.empty()) kill(rank, text_of("rank ", rank, ": ", no_answer(timeout_, std::move(silent))));
    }
    place.waits_for = nullptr;  // not before the world is dead: a rank whose patience ends now has waited, too
    // Looked at last: a message that overtook one withdrawn from a dead world must not count.
    if (!is_dead()) return;
    withdraw(operation);
    throw_dead(rank);
  }

  // Takes back the slots that are not matched. REQUIRES: the world is dead, because the order of messages breaks here.
  void withdraw(Operation& operation) {
    for (Slot& slot : operation.slots) {
      Channel& at = channel(slot);
      const std::lock_guard lock(at.mutex);
      if (slot.posted) at.remove(slot);
    }
  }

  // Ends every present and later wait, here and in the parts split from this world. The first reason stays.
  void kill(int rank, const std::string& reason) {
    std::vector<std::weak_ptr<ThreadWorld>> parts;
    {
      const std::lock_guard lock(mutex_);
      if (is_dead()) return;
      killer_ = rank;
      reason_ = reason;
      dead_ = true;
      parts = parts_;
    }
    for (Seat& place : seats_) {
      // Without the lock, a rank between its look at dead_ and its sleep would not be woken.
      { const std::lock_guard lock(place.mutex); }
      place.wake.notify_all();
    }
    for (const auto& part : parts)
      if (const auto world = part.lock()) world->kill(rank, reason);
  }

  // This rank posts nothing any more; a rank that waits for it kills the world.
  void leave(int rank) {
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

  // The world of the ranks `members`, in split number `turn`: the first of them to come makes it.
  std::shared_ptr<ThreadWorld> part(int turn, const std::vector<int>& members) {
    const std::lock_guard lock(mutex_);
    if (is_dead()) fail<CommError>("threads: split: the world is dead: ", reason_);
    NewPart& part = new_parts_[{turn, members.front()}];
    if (part.world == nullptr) {
      part.world = make(static_cast<int>(members.size()), timeout_);
      std::erase_if(parts_, [](const auto& old) { return old.expired(); });
      parts_.push_back(part.world);
    }
    std::shared_ptr<ThreadWorld> world = part.world;
    if (++part.taken == members.size()) new_parts_.erase({turn, members.front()});
    return world;
  }

 private:
  struct Channel {
    std::mutex mutex;
    Slot* first = nullptr;
    Slot* last = nullptr;
    bool closed = false;  // one end has left

    void push(Slot& slot) {
      slot.posted = true;
      slot.next = nullptr;
      (first == nullptr ? first : last->next) = &slot;
      last = &slot;
    }
    void remove(Slot& slot) {
      Slot* before = nullptr;
      for (Slot* at = first; at != &slot; at = at->next) before = at;
      (before == nullptr ? first : before->next) = slot.next;
      if (last == &slot) last = before;
      slot.posted = false;
    }
  };
  // A rank sleeps here.
  struct Seat {
    std::mutex mutex;
    std::condition_variable wake;
    std::atomic<const Operation*> waits_for = nullptr;  // only compared with others
  };
  // A part that not all of its members have taken yet.
  struct NewPart {
    std::shared_ptr<ThreadWorld> world;
    std::size_t taken = 0;
  };

  Channel& channel(int from, int to) {
    return channels_[static_cast<std::size_t>(from) * static_cast<std::size_t>(P_) + static_cast<std::size_t>(to)];
  }
  Channel& channel(const Slot& slot) {
    return slot.recv == nullptr ? channel(slot.owner, slot.peer) : channel(slot.peer, slot.owner);
  }

  void post(Slot& slot) {
    Channel& at = channel(slot);
    const std::lock_guard lock(at.mutex);
    Slot* const match = at.first;
    const bool is_send = slot.recv == nullptr;
    if (match == nullptr || (match->recv == nullptr) == is_send) {
      at.push(slot);
      if (at.closed) kill(slot.owner, text_of("rank ", slot.owner, " waits for rank ", slot.peer, ", which left"));
      return;
    }
    const Slot& send = is_send ? slot : *match;
    Recv& recv = is_send ? *match->recv : *slot.recv;
    if (send.source.size() > recv.buffer.size()) {
      at.push(slot);
      return kill(send.peer, text_of("rank ", send.peer, " received ", send.source.size(), " bytes from rank ",
                                     send.owner, ", capacity ", recv.buffer.size()));
    }
    std::copy(send.source.begin(), send.source.end(), recv.buffer.begin());
    recv.size = send.source.size();
    at.remove(*match);
    complete(*match);
    complete(slot);
  }

  void complete(const Slot& slot) {
    // At zero the owner may reuse the operation with its slots; its seat stays.
    Seat& place = seats_[static_cast<std::size_t>(slot.owner)];
    if (slot.operation->open.fetch_sub(1) > 1) return;
    { const std::lock_guard lock(place.mutex); }
    place.wake.notify_one();
  }

  // False on timeout. Giving the core away a few times is cheaper than sleeping when the peer is about to answer.
  bool sleep(Seat& place, const Operation& operation) {
    constexpr int kYieldsBeforeSleep = 16;
    const auto is_over = [&] { return operation.open.load() == 0 || is_dead(); };
    for (int i = 0; i < kYieldsBeforeSleep; ++i) {
      if (is_over()) return true;
      std::this_thread::yield();
    }
    std::unique_lock lock(place.mutex);
    return place.wake.wait_until(lock, std::chrono::steady_clock::now() + timeout_, is_over);
  }

  // The ranks that keep `rank` waiting and do not wait themselves. Where all wait, its own peers.
  std::vector<int> culprits(int rank, const Operation& operation) {
    const std::vector<int> direct = silent_peers(rank, &operation);
    std::vector<int> found, to_visit = direct;
    std::vector<bool> is_seen(seats_.size());
    while (!to_visit.empty()) {
      const int peer = to_visit.back();
      to_visit.pop_back();
      if (is_seen[static_cast<std::size_t>(peer)]) continue;
      is_seen[static_cast<std::size_t>(peer)] = true;
      const Operation* const waits_for = seats_[static_cast<std::size_t>(peer)].waits_for;
      if (waits_for == nullptr) found.push_back(peer);
      for (const int next : silent_peers(peer, waits_for)) to_visit.push_back(next);
    }
    return found.empty() ? direct : found;
  }

  // The peers that have not matched the slots of this operation of `rank`.
  std::vector<int> silent_peers(int rank, const Operation* operation) {
    std::vector<int> peers;
    for (int peer = 0; peer < P_ && operation != nullptr; ++peer)
      if (holds(channel(rank, peer), rank, operation) || holds(channel(peer, rank), rank, operation))
        peers.push_back(peer);
    return peers;
  }
  static bool holds(Channel& at, int owner, const Operation* operation) {
    const std::lock_guard lock(at.mutex);
    for (const Slot* slot = at.first; slot != nullptr; slot = slot->next)
      if (slot->owner == owner && slot->operation == operation) return true;
    return false;
  }

  const ProcessMark mark_;
  const int P_;
  const Communicator::Duration timeout_;
  std::vector<Channel> channels_;
  std::vector<Seat> seats_;
  std::atomic<bool> dead_ = false;

  std::mutex mutex_;  // guards what follows, and the setting of dead_
  int killer_ = -1;
  std::string reason_;
  std::vector<std::weak_ptr<ThreadWorld>> parts_;
  std::map<std::pair<int, int>, NewPart> new_parts_;  // by turn and first member
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadWorld> world, int rank) : world_(std::move(world)), rank_(rank) {}

  ~ThreadCommunicator() override {
    if (is_forked()) return;
    expel();
    operations_.for_each_taken([&](std::uint64_t ticket) { ThreadCommunicator::abandon(ticket); });
    world_->leave(rank_);
  }

  int rank() const override { return rank_; }
  int size() const override { return world_->size(); }
  std::string_view transport() const override { return "threads"; }
  Duration timeout() const override { return world_->timeout(); }

  std::unique_ptr<Communicator> split(int color, int key) override {
    const Part part = agree_on_part(*this, color, key, splits_++);
    return as_part(std::make_unique<ThreadCommunicator>(world_->part(part.number, part.ranks), part.rank), color,
                   part.ranks);
  }

  int host() override { return 0; }

  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override {
    if (world_->is_dead()) world_->throw_dead(rank_);
    const std::uint64_t ticket = operations_.take();
    ThreadWorld::Operation& operation = operations_[ticket];
    operation.slots.clear();
    operation.slots.reserve(sends.size() + recvs.size());
    for (Recv& recv : recvs) operation.slots.push_back({&operation, rank_, recv.peer, {}, &recv});
    for (const Send& send : sends) operation.slots.push_back({&operation, rank_, send.peer, send.bytes});
    world_->post(operation);
    return ticket;
  }

  void finish(std::uint64_t ticket) override {
    world_->await(rank_, operations_[ticket]);
    operations_.give_back(ticket);
  }

  void abandon(std::uint64_t ticket) noexcept override {
    kill();
    world_->withdraw(operations_[ticket]);
    operations_.give_back(ticket);
  }
  void kill() noexcept override {
    if (!is_forked()) world_->kill(rank_, "rank " + std::to_string(rank_) + " abandoned an exchange");
  }
  bool can_kill_waits() const override { return true; }
  bool is_forked() const override { return world_->is_forked(); }

 private:
  std::shared_ptr<ThreadWorld> world_;
  int rank_;
  int splits_ = 0;
  OperationPool<ThreadWorld::Operation> operations_;
};

std::shared_ptr<ThreadWorld> new_world(int P, Communicator::Duration timeout) {
  require(P >= 1, "threads: a world of size ", P, ", must be at least 1");
  require(timeout > Communicator::Duration::zero(), "threads: the timeout must be positive");
  return ThreadWorld::make(P, timeout);
}

std::vector<std::unique_ptr<Communicator>> make_ranks(const std::shared_ptr<ThreadWorld>& world) {
  std::vector<std::unique_ptr<Communicator>> comms;
  for (int rank = 0; rank < world->size(); ++rank) comms.push_back(std::make_unique<ThreadCommunicator>(world, rank));
  return comms;
}

// Runs the body of one rank and kills the world if it throws. The communicator ends here, before the thread does:
// nobody waits for a rank that returned.
std::exception_ptr run_rank(ThreadWorld& world, std::unique_ptr<Communicator> comm,
                            const std::function<void(Communicator&)>& body) {
  const int rank = comm->rank();
  try {
    body(*comm);
    return nullptr;
  } catch (const std::exception& error) {
    world.kill(rank, text_of("rank ", rank, " failed: ", error.what()));
    return std::current_exception();
  } catch (...) {
    world.kill(rank, text_of("rank ", rank, " failed"));
    return std::current_exception();
  }
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_world(int P, Communicator::Duration timeout) {
  return make_ranks(new_world(P, timeout));
}

void run_threads(int P, const std::function<void(Communicator&)>& body, Communicator::Duration timeout) {
  const auto world = new_world(P, timeout);
  auto comms = make_ranks(world);
  std::vector<std::exception_ptr> errors(comms.size());
  std::vector<std::jthread> threads;
  try {
    for (std::size_t r = 0; r < comms.size(); ++r)
      threads.emplace_back([&, r] { errors[r] = run_rank(*world, std::move(comms[r]), body); });
  } catch (...) {
    world->kill(-1, "a thread could not be started");  // before the others are joined
    throw;
  }
  threads.clear();  // joins
  // Once the world is dead every rank fails. The error of the rank that killed it is the cause: it comes first.
  if (world->killer() > 0) std::swap(errors.front(), errors[static_cast<std::size_t>(world->killer())]);
  for (const std::exception_ptr& error : errors)
    if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace oktopk
