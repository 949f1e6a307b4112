// SPDX-License-Identifier: Apache-2.0
// The checks in front of every transport, and the life of a started exchange.
#include "oktopk/comm/communicator.h"

#include "oktopk/base/error.h"

namespace oktopk {

MessageCount count_sent(std::span<const Send> sends, int self) {
  MessageCount count;
  for (const Send& send : sends) {
    if (send.peer == self) continue;
    ++count.messages;
    count.bytes += send.bytes.size();
  }
  return count;
}

MessageCount count_received(std::span<const Recv> recvs, int self) {
  MessageCount count;
  for (const Recv& recv : recvs) {
    if (recv.peer == self) continue;
    ++count.messages;
    count.bytes += recv.size;
  }
  return count;
}

Pending::~Pending() {
  if (comm_ != nullptr) comm_->abandon(ticket_);
}

void Pending::wait() {
  require(comm_ != nullptr, "wait: this exchange was already waited for");
  std::exchange(comm_, nullptr)->finish(ticket_);
}

Pending Communicator::start(std::span<const Send> sends, std::span<Recv> recvs) {
  const int P = size();
  for (const Send& send : sends) {
    require(send.peer >= 0 && send.peer < P, "start: send to rank ", send.peer, " in a world of size ", P);
  }
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
    // begin() throws where the communicator is dead already.
  }
}

}  // namespace oktopk
