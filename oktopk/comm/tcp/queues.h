// SPDX-License-Identifier: Apache-2.0
// The messages that transport "tcp" sends to one peer and receives from it: the operations of a rank, and the queues of
// both directions. A peer grants a credit: the bytes that it can keep before their receives are posted. A message
// beyond the credit is offered, and held until the peer accepts it because its receive is posted.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "oktopk/base/bytes.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/communicator.h"

namespace oktopk {

// A failure of the world that a peer reported: all ranks throw the same text.
struct TcpFailure : CommError {
  TcpFailure(int rank, const std::string& reason) : CommError(reason), culprit(rank) {}
  int culprit;
};

struct TcpOperation;

// One send or receive of an operation.
struct TcpSlot {
  TcpOperation* operation = nullptr;
  int peer = 0;  // in the world
  std::uint64_t channel = 0;
  std::span<const std::byte> source;  // of a send
  Recv* recv = nullptr;               // of a receive; null for a send
  std::size_t done = 0;               // bytes of a send that are on their way
  bool is_open = true;
};

// The messages of one start(): complete when no slot is open.
struct TcpOperation {
  std::size_t open = 0;
  std::vector<TcpSlot> slots;  // does not grow while in flight
};

inline void complete(TcpSlot& slot) {
  slot.is_open = false;
  --slot.operation->open;
}

// First in, first out; keeps its memory.
template <class T>
class Fifo {
 public:
  bool empty() const { return first_ == items_.size(); }
  T& front() { return items_[first_]; }
  void push(T item) { items_.push_back(std::move(item)); }
  T pop() {
    T item = std::move(items_[first_++]);
    if (empty()) clear();
    return item;
  }
  void clear() {
    items_.clear();
    first_ = 0;
  }

 private:
  std::vector<T> items_;
  std::size_t first_ = 0;
};

// Matches the messages of one peer with the receives that were posted for them, per channel, first in first out. A
// message whose receive is posted goes straight into its buffer. One that comes early is kept, within the credit of
// early_bytes in all.
class TcpInbox {
 public:
  TcpInbox(int mine, int peer, std::size_t early_bytes) : mine_(mine), peer_(peer), most_early_(early_bytes) {}

  // Whether a message that was offered is accepted by it. CommError when the peer has left the channel.
  bool post(TcpSlot& slot) {
    Queue& queue = queues_[slot.channel];
    if (!queue.early.empty()) {
      const Bytes message = queue.early.pop();
      forget(message.size());
      deliver(slot, message);
      return false;
    }
    if (queue.left) fail<CommError>("left, and rank ", mine_, " waits for it");
    queue.posted.push(&slot);
    if (!std::exchange(queue.is_offered, false)) return false;
    return queue.is_accepted = true;
  }

  // The peer has a message for which its credit does not suffice. Whether it is accepted now.
  bool offer(std::uint64_t channel) {
    Queue& queue = find(channel);
    if (queue.is_offered || queue.is_accepted) fail<CommError>("offered a message twice");
    if (queue.closed) return false;  // the peer is about to learn it, and drops the message
    (queue.posted.empty() ? queue.is_offered : queue.is_accepted) = true;
    return queue.is_accepted;
  }

  // The credit that the peer gets back now; 0: none. In large parts, so that it costs nothing.
  std::uint64_t take_credit() {
    return free_ < std::max<std::size_t>(most_early_ / 4, 1) ? 0 : std::exchange(free_, 0);
  }

  // Begins a message. CommError if it is early and beyond the credit, or its sender has left the channel.
  void begin(std::uint64_t channel, std::uint64_t size) {
    Queue& queue = find(channel);
    if (queue.left) fail<CommError>("sent a message in a channel that it has left");
    if (queue.posted.empty() && size > most_early_ - early_)
      fail<CommError>("sent ", size, " bytes before their receive was posted, beyond its credit");
    queue_ = &queue;
    slot_ = queue.posted.empty() ? nullptr : queue.posted.pop();
    size_ = size;
    received_ = 0;
    used_credit_ = !std::exchange(queue.is_accepted, false);
    if (slot_ != nullptr) return expect_room(*slot_, size_);
    early_message_.resize(size_);
    early_ += size_;
  }

  // Where the next bytes of the message go.
  std::span<std::byte> rest() {
    const std::span<std::byte> all = slot_ != nullptr ? slot_->recv->buffer.first(size_) : std::span(early_message_);
    return all.subspan(received_);
  }

  // `count` bytes were written there. The last ones end the message.
  void advance(std::size_t count) {
    received_ += count;
    if (received_ < size_) return;
    Queue& queue = *std::exchange(queue_, nullptr);
    if (slot_ != nullptr) {
      free_ += used_credit_ ? size_ : 0;
      finish(*std::exchange(slot_, nullptr), size_);
    } else if (queue.closed) {
      forget(size_);
    } else if (!queue.posted.empty()) {
      forget(size_);
      deliver(*queue.posted.pop(), early_message_);
    } else {
      queue.early.push(std::exchange(early_message_, {}));
    }
  }

  // The peer has closed its end of the channel. CommError if somebody here waits for it, or its message is not over.
  void leave(std::uint64_t channel) {
    Queue& queue = find(channel);
    if (queue_ == &queue) fail<CommError>("left a channel in the middle of a message");
    queue.left = true;
    if (!queue.posted.empty()) fail<CommError>("left while rank ", mine_, " waited for it");
    if (queue.closed) queues_.erase(channel);
  }
  // The peer has closed all channels.
  void leave_all() {
    if (queue_ != nullptr) fail<CommError>("left in the middle of a message");
    left_all_ = true;
    for (auto& [channel, queue] : queues_) {
      queue.left = true;
      if (!queue.posted.empty()) fail<CommError>("left while rank ", mine_, " waited for it");
    }
  }
  bool has_left(std::uint64_t channel) {
    const auto at = queues_.find(channel);
    return at == queues_.end() ? left_all_ : at->second.left;
  }

  // This end of the channel is closed: early messages for it are dropped.
  void close(std::uint64_t channel) {
    Queue& queue = queues_[channel];
    queue.closed = true;
    while (!queue.early.empty()) forget(queue.early.pop().size());
    if (queue.left) queues_.erase(channel);
  }

  // Forgets all receives: their buffers are not touched any more.
  void clear() {
    queues_.clear();
    queue_ = nullptr;
    slot_ = nullptr;
  }

 private:
  static constexpr std::size_t kMostChannels = 65536;

  struct Queue {
    Fifo<TcpSlot*> posted;
    Fifo<Bytes> early;
    bool left = false;         // by the peer
    bool closed = false;       // at this end
    bool is_offered = false;   // a message, which waits for a receive
    bool is_accepted = false;  // the first of `posted` is for a message that was offered
  };

  // A peer may be ahead in a channel that this rank has yet to open.
  Queue& find(std::uint64_t channel) {
    const auto at = queues_.find(channel);
    if (at != queues_.end()) return at->second;
    if (queues_.size() >= kMostChannels) fail<CommError>("uses more than ", kMostChannels, " channels");
    return queues_[channel];
  }

  // A message that came early is kept no longer.
  void forget(std::size_t size) {
    early_ -= size;
    free_ += size;
  }
  void expect_room(const TcpSlot& slot, std::uint64_t size) const {
    if (size > slot.recv->buffer.size())
      throw TcpFailure(mine_, text_of("rank ", mine_, " received ", size, " bytes from rank ", peer_, ", capacity ",
                                      slot.recv->buffer.size()));
  }
  void deliver(TcpSlot& slot, std::span<const std::byte> message) const {
    expect_room(slot, message.size());
    std::copy(message.begin(), message.end(), slot.recv->buffer.begin());
    finish(slot, message.size());
  }
  static void finish(TcpSlot& slot, std::size_t size) {
    slot.recv->size = size;
    complete(slot);
  }

  const int mine_, peer_;
  const std::size_t most_early_;
  std::size_t early_ = 0;  // bytes of messages that are kept
  std::size_t free_ = 0;   // credit that was used, and is to be given back
  std::map<std::uint64_t, Queue> queues_;
  bool left_all_ = false;

  // The message that is being received. No queue is forgotten before its message is over.
  Queue* queue_ = nullptr;   // null: there is none
  TcpSlot* slot_ = nullptr;  // its receive; null: early_message_ takes it
  Bytes early_message_;
  std::size_t size_ = 0, received_ = 0;
  bool used_credit_ = false;
};

// Decides which message to one peer is written next. Behind a message that is held for want of credit, later messages
// of its channel stay; those of other channels pass. So a message that nobody waits for yet holds up nothing else.
// COST: one round trip more for a message beyond the credit.
class TcpOutbox {
 public:
  bool empty() const { return current_ == nullptr && ready_.empty() && freed_.empty() && held_.empty(); }

  void push(TcpSlot& slot) {
    const auto at = held_.find(slot.channel);
    (at == held_.end() ? ready_ : at->second.slots).push(&slot);
  }

  // The message to go on with; null when there is none. next_offer() may have something afterwards.
  TcpSlot* next() {
    if (current_ == nullptr && !freed_.empty()) current_ = freed_.pop();
    while (current_ == nullptr && !ready_.empty()) {
      TcpSlot& slot = *ready_.pop();
      const auto at = held_.find(slot.channel);
      if (at != held_.end())
        at->second.slots.push(&slot);
      else if (!pay(slot))
        hold(slot);
    }
    return current_;
  }

  // A message that the peer must be asked for.
  std::optional<const TcpSlot*> next_offer() {
    return offers_.empty() ? std::nullopt : std::optional<const TcpSlot*>(offers_.pop());
  }

  // All of the message that next() gave is written.
  void end() {
    TcpSlot& slot = *std::exchange(current_, nullptr);
    complete(slot);
    free_next(slot.channel);
  }

  void grant(std::uint64_t bytes) { credit_ += std::min(bytes, std::numeric_limits<std::uint64_t>::max() - credit_); }

  // The peer waits for the message that it was offered.
  void accept(std::uint64_t channel) {
    const auto at = held_.find(channel);
    if (at == held_.end() || !at->second.is_offered) fail<CommError>("accepted a message that it was not offered");
    at->second.is_offered = false;
    freed_.push(at->second.slots.pop());
  }

  // The peer has closed the channel: nobody will receive these.
  void drop(std::uint64_t channel) {
    const auto at = held_.find(channel);
    if (at == held_.end()) return;
    while (!at->second.slots.empty()) complete(*at->second.slots.pop());
    held_.erase(at);
  }

  // Forgets all messages: their buffers are not touched any more.
  void clear() {
    current_ = nullptr;
    ready_.clear();
    freed_.clear();
    offers_.clear();
    held_.clear();
  }

 private:
  struct Held {
    Fifo<TcpSlot*> slots;
    bool is_offered = false;  // the first of them
  };

  bool pay(TcpSlot& slot) {
    if (slot.source.size() > credit_) return false;
    credit_ -= slot.source.size();
    current_ = &slot;
    return true;
  }
  void hold(TcpSlot& slot) {
    Held& held = held_[slot.channel];
    held.slots.push(&slot);
    held.is_offered = true;
    offers_.push(&slot);
  }

  // One after the other: an offer must not overtake an earlier message of its channel.
  void free_next(std::uint64_t channel) {
    const auto at = held_.find(channel);
    if (at == held_.end() || at->second.is_offered) return;
    if (at->second.slots.empty()) {
      held_.erase(at);
      return;
    }
    TcpSlot& slot = *at->second.slots.front();
    if (slot.source.size() <= credit_) {
      credit_ -= slot.source.size();
      freed_.push(at->second.slots.pop());
    } else {
      at->second.is_offered = true;
      offers_.push(&slot);
    }
  }

  std::uint64_t credit_ = 0;
  TcpSlot* current_ = nullptr;  // that is being written
  Fifo<TcpSlot*> ready_, freed_, offers_;
  std::map<std::uint64_t, Held> held_;  // by channel; no entry: its messages are ready
};

}  // namespace oktopk
