// SPDX-License-Identifier: Apache-2.0
// The frames that travel between two ranks of transport "tcp" after the handshake: a head of 40 bytes and a body. A
// message is cut into pieces of at most kPieceBytes, so that the notice of a failure need not wait for a long message.
// Frames that belong to another epoch or another start of the job are refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/communicator.h"

namespace oktopk {

enum class FrameKind : std::uint32_t {
  data = 1,       // a piece of a message
  heartbeat = 2,  // a sign of life
  leave = 3,      // the sender has closed its communicator of this channel
  goodbye = 4,    // the sender ends in order; nothing follows
  failure = 5,    // the sender gives up: the rank that is the cause (4 bytes), and the reason
  credit = 6,     // the sender can keep so many more bytes (`left`) before their receives are posted
  offer = 7,      // a message of this channel, of `left` bytes, for which the credit does not suffice
  accept = 8,     // its receive is posted
};

inline constexpr std::size_t kPieceBytes = std::size_t{512} << 10;
inline constexpr std::size_t kMostControlBytes = 4096;

struct FrameTags {
  std::uint64_t epoch = 0;
  std::uint64_t membership = 0;  // a hash of the job, the epoch and the instances of all ranks
};

struct FrameHead {
  FrameKind kind;
  std::uint32_t length;   // of the body
  std::uint64_t left;     // data: bytes of the message from this piece on; credit, offer: bytes
  std::uint64_t channel;  // data, leave, offer, accept: the communicator
  FrameTags tags;
};
static_assert(sizeof(FrameHead) == 40, "the struct travels as it is");

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

}  // namespace oktopk
