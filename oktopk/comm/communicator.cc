// SPDX-License-Identifier: Apache-2.0
// The checks in front of every transport, and the life of a started exchange.
#include "oktopk/comm/communicator.h"

#include "oktopk/base/error.h"

namespace oktopk {

namespace {

std::size_t size_of(const Send& send) { return send.bytes.size(); }
std::size_t size_of(const Recv& recv) { return recv.size; }

template <class Message>
MessageCount count(std::span<const Message> messages, int self) {
  MessageCount count;
  for (const Message& message : messages) {
    if (message.peer == self) continue;
    ++count.messages;
    count.bytes += size_of(message);
  }
  return count;
}

}  // namespace

MessageCount count_sent(std::span<const Send> sends, int self) { return count(sends, self); }
MessageCount count_received(std::span<const Recv> recvs, int self) { return count(recvs, self); }

Pending::~Pending() {
  if (comm_ != nullptr) comm_->abandon(ticket_);
}

void Pending::wait() {
  require(comm_ != nullptr, "wait: this exchange was already waited for");
  std::exchange(comm_, nullptr)->finish(ticket_);
}

Pending Communicator::start(std::span<const Send> sends, std::span<Recv> recvs) {
  const int P = size();
  for (const Send& send : sends)
    require(send.peer >= 0 && send.peer < P, "start: send to rank ", send.peer, " in a world of size ", P);
  for (Recv& recv : recvs) {
    require(recv.peer >= 0 && recv.peer < P, "start: receive from rank ", recv.peer, " in a world of size ", P);
    recv.size = 0;
  }
  Pending pending(*this, begin(sends, recvs));
  const MessageCount sent = count_sent(sends, rank());
  sent_.messages += sent.messages;
  sent_.bytes += sent.bytes;
  return pending;
}

void Communicator::kill() noexcept {
  try {
    const Pending abandoned = start({}, {});
  } catch (...) {
    // begin() throws if the communicator is dead already.
  }
}

}  // namespace oktopk
