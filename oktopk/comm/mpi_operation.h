// SPDX-License-Identifier: Apache-2.0
// One exchange of the transport "mpi": its messages, and the memory that MPI reads and writes.
// MPI cannot take back a message that has begun, so that memory is the operation's own: the caller
// may free the buffers of a failed exchange at once, and the operation lives on for as long as MPI
// has a request of it (docs/decisions/0018-mpi-memory-is-ours.md). Cost: one copy of what is sent
// and one of what arrives; none in place. The memory is kept for the next exchange.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "oktopk/base/bytes.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/comm/mpi_calls.h"
#include "oktopk/comm/transport_support.h"

namespace oktopk {

class MpiOperation {
 public:
  struct Message {
    int peer = 0;
    std::byte* memory = nullptr;  // where MPI reads or writes
    std::size_t bytes = 0;        // a send's size, a receive's capacity
    MPI_Request request = MPI_REQUEST_NULL;
    bool is_complete = false;
  };

  // Receives first, then sends, in the order in which start() was given them. In place, MPI is
  // given the caller's buffers.
  void prepare(std::span<const Send> sends, std::span<Recv> recvs, bool in_place) {
    messages_.clear();
    for (const Recv& recv : recvs) messages_.push_back({recv.peer, recv.buffer.data(), recv.buffer.size()});
    for (const Send& send : sends)
      messages_.push_back({send.peer, const_cast<std::byte*>(send.bytes.data()), send.bytes.size()});
    recvs_ = recvs;
    receives_ = recvs.size();
    in_place_ = in_place;
    if (in_place) return;
    if (memory_.size() < messages_.size()) memory_.resize(messages_.size());
    for (std::size_t i = receives_; i < messages_.size(); ++i) {
      const std::byte* from = messages_[i].memory;
      std::copy_n(from, messages_[i].bytes, make_room(i, messages_[i].bytes));
    }
  }

  std::vector<Message>& messages() { return messages_; }
  const Message& message(std::size_t i) const { return messages_[i]; }
  bool is_receive(std::size_t i) const { return i < receives_; }

  // Where a message of this size goes, or comes from.
  std::byte* make_room(std::size_t i, std::size_t size) {
    if (in_place_) return messages_[i].memory;
    Bytes& room = memory_[i];
    if (room.size() < size) {
      room.clear();  // nothing to copy
      room.resize(size);
    }
    return messages_[i].memory = room.data();
  }

  // Receive i is complete with this many bytes.
  void arrived(std::size_t i, std::size_t size) {
    recvs_[i].size = size;
    if (!in_place_) std::copy_n(messages_[i].memory, size, recvs_[i].buffer.data());
  }

  // Forgets the caller's buffers. True when MPI has no request of it any more.
  bool withdraw() noexcept {
    recvs_ = {};
    return open() == 0;
  }

  // In place: receives that have begun get `grace` to end; then all is left to MPI, with the
  // caller's buffers.
  void let_go(Communicator::Duration grace) noexcept {
    poll(grace, [&] { return open() == 0; });
    for (Message& message : messages_)
      if (message.request != MPI_REQUEST_NULL) MPI_Request_free(&message.request);
  }

 private:
  std::size_t open() noexcept {
    std::size_t open = 0;
    for (Message& message : messages_) {
      int is_done = 1;
      if (message.request != MPI_REQUEST_NULL) MPI_Test(&message.request, &is_done, MPI_STATUS_IGNORE);
      open += is_done == 0 ? 1 : 0;
    }
    return open;
  }

  std::vector<Message> messages_;
  std::vector<Bytes> memory_;  // by message
  std::span<Recv> recvs_;      // the caller's
  std::size_t receives_ = 0;
  bool in_place_ = false;
};

}  // namespace oktopk
