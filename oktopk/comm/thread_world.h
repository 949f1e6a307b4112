// SPDX-License-Identifier: Apache-2.0
// The state that the ranks of the transport "threads" share; internal to threads.cc. One channel per ordered pair of
// ranks holds the sends and receives that were posted and not yet matched, first in first out. The side that comes
// second copies, under the channel's lock. withdraw() locks each channel of an operation: afterwards no copy is in
// progress, and the buffers may be freed. Locks nest in this order: Channel, World, Seat.
// COST: per message one copy, three lock operations, at most one wake-up, no allocation.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "oktopk/comm/communicator.h"

namespace oktopk {

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

  ThreadWorld(int size, Communicator::Duration timeout);

  int size() const { return P_; }
  Communicator::Duration timeout() const { return timeout_; }
  bool is_dead() const { return dead_.load(); }
  // The rank that killed the world; -1 while it lives.
  int killer();

  // Matches every slot with a slot of the peer, or leaves it for the peer to match.
  void post(Operation& operation);
  // Sleeps until the operation is complete. On timeout kills the world, withdraws and throws.
  void await(int rank, Operation& operation);
  // Takes back the slots that are not matched. REQUIRES: the world is dead, because the order of messages breaks here.
  void withdraw(Operation& operation);

  // Ends every present and later wait, here and in the parts split from this world. The first reason stays.
  void kill(int rank, const std::string& reason);
  [[noreturn]] void throw_dead(int rank);
  // This rank posts nothing any more; a rank that waits for it kills the world.
  void leave(int rank);

  // The world of the ranks `members`, in split number `turn`: the first of them to come makes it.
  std::shared_ptr<ThreadWorld> part(int turn, const std::vector<int>& members);

 private:
  struct Channel {
    std::mutex mutex;
    Slot* first = nullptr;
    Slot* last = nullptr;
    bool closed = false;  // one end has left

    void push(Slot& slot);
    void remove(Slot& slot);
  };
  // A rank sleeps here.
  struct Seat {
    std::mutex mutex;
    std::condition_variable wake;
  };
  // A part that not all of its members have taken yet.
  struct NewPart {
    std::shared_ptr<ThreadWorld> world;
    std::size_t taken = 0;
  };

  Channel& channel(int from, int to);
  Channel& channel(const Slot& slot);
  Seat& seat(int rank) { return seats_[static_cast<std::size_t>(rank)]; }
  void post(Slot& slot);
  void complete(const Slot& slot);
  bool sleep(int rank, const Operation& operation);
  std::vector<int> silent_peers(const Operation& operation);

  const int P_;
  const Communicator::Duration timeout_;
  std::vector<Channel> channels_;
  std::vector<Seat> seats_;
  std::atomic<bool> dead_ = false;

  std::mutex mutex_;  // guards what follows, and the setting of dead_
  int killer_ = -1;
  std::string reason_;
  std::vector<std::weak_ptr<ThreadWorld>> children_;
  std::map<std::pair<int, int>, NewPart> new_parts_;  // by turn and first member
};

}  // namespace oktopk
