// SPDX-License-Identifier: Apache-2.0
// Decides which message to one peer is written next. The peer grants a credit: the bytes that it can keep before their
// receives are posted (tcp_inbox.h). A message beyond the credit is offered, and held until the peer accepts it because
// its receive is posted; later messages of its channel stay behind it, those of other channels pass. So a message that
// nobody waits for yet holds up nothing else.
// COST: one round trip more for a message beyond the credit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/comm/tcp/frame.h"

namespace oktopk {

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
