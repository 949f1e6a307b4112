// SPDX-License-Identifier: Apache-2.0
// Matches the messages of one peer with the receives that were posted for them, per channel, first in first out. A
// message whose receive is posted goes straight into its buffer. One that comes early is kept. The peer has a credit
// for that, early_bytes in all; beyond it, the peer offers a message and waits until its receive is posted
// (tcp_outbox.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>

#include "oktopk/base/bytes.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/tcp/frame.h"

namespace oktopk {

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

}  // namespace oktopk
