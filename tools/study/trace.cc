// SPDX-License-Identifier: Apache-2.0
#include "tools/study/trace.h"

namespace oktopk {

std::uint64_t LoggingCommunicator::begin(std::span<const Send> sends, std::span<Recv> recvs) {
  const std::uint64_t ticket = inner().begin(sends, recvs);
  Exchange exchange;
  for (const Send& send : sends) exchange.bytes_sent += send.bytes.size();
  keep(ticket, {exchanges_.size(), recvs});
  exchanges_.push_back(exchange);
  return ticket;
}

void LoggingCommunicator::finish(std::uint64_t ticket) {
  const LoggedExchange seen = take(ticket);
  inner().finish(ticket);
  Exchange& exchange = exchanges_[seen.at];
  exchange.messages_received = seen.recvs.size();
  for (const Recv& recv : seen.recvs) exchange.bytes_received += recv.size;
}

}  // namespace oktopk
