// SPDX-License-Identifier: Apache-2.0
#include "tools/study/trace.h"

#include <algorithm>

namespace oktopk {

std::uint64_t LoggingCommunicator::begin(std::span<const Send> sends, std::span<Recv> recvs) {
  const std::uint64_t ticket = inner().begin(sends, recvs);
  Exchange exchange;
  for (const Send& send : sends) exchange.bytes_sent += send.bytes.size();
  open_.push_back({ticket, recvs, exchanges_.size()});
  exchanges_.push_back(exchange);
  return ticket;
}

void LoggingCommunicator::finish(std::uint64_t ticket) {
  const auto at = std::find_if(open_.begin(), open_.end(),
                               [&](const Open& open) { return open.ticket == ticket; });
  const Open open = *at;
  open_.erase(at);
  inner().finish(ticket);
  Exchange& exchange = exchanges_[open.exchange];
  exchange.messages_received = open.recvs.size();
  for (const Recv& recv : open.recvs) exchange.bytes_received += recv.size;
}

}  // namespace oktopk
