// SPDX-License-Identifier: Apache-2.0
// Counting and tracing messages, and bringing the traces of all ranks together (decorators.h).
#include "oktopk/comm/decorators.h"

#include <algorithm>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"

namespace oktopk {

std::unique_ptr<Communicator> CountingCommunicator::split(int color, int key) {
  return std::unique_ptr<Communicator>(new CountingCommunicator(inner().split(color, key), traffic_));
}

std::uint64_t CountingCommunicator::begin(std::span<const Send> sends, std::span<Recv> recvs) {
  const std::uint64_t ticket = inner().begin(sends, recvs);
  const MessageCount sent = count_sent(sends, rank());
  traffic_->messages_sent += sent.messages;
  traffic_->bytes_sent += sent.bytes;
  keep(ticket, {sent, recvs});
  return ticket;
}

void CountingCommunicator::finish(std::uint64_t ticket) {
  const CountedExchange seen = take(ticket);
  inner().finish(ticket);
  const MessageCount received = count_received(seen.recvs, rank());
  traffic_->messages_received += received.messages;
  traffic_->bytes_received += received.bytes;
  traffic_->duplex_messages += std::max(received.messages, seen.sent.messages);
  traffic_->duplex_bytes += std::max(received.bytes, seen.sent.bytes);
}

void TracingCommunicator::name_peers(const std::vector<int>& ranks) {
  const auto P = static_cast<std::size_t>(size());
  require(ranks.empty() || ranks.size() == P, "tracing: ", ranks.size(), " names for ", P, " ranks");
  for (std::size_t r = 0; r < P; ++r) {
    const std::string name = std::to_string(ranks.empty() ? static_cast<int>(r) : ranks[r]);
    to_.push_back("to " + name);
    from_.push_back("from " + name);
  }
}

std::unique_ptr<Communicator> TracingCommunicator::split(int color, int key) {
  return std::make_unique<TracingCommunicator>(inner().split(color, key), row_, std::vector<int>{}, "part");
}

std::uint64_t TracingCommunicator::begin(std::span<const Send> sends, std::span<Recv> recvs) {
  Span span(row_, "start", category_);
  for (const Send& send : sends)
    if (send.peer != rank()) span.arg(to_[static_cast<std::size_t>(send.peer)], send.bytes.size());
  const std::uint64_t ticket = inner().begin(sends, recvs);
  keep(ticket, recvs);
  return ticket;
}

void TracingCommunicator::finish(std::uint64_t ticket) {
  const std::span<const Recv> recvs = take(ticket);
  Span span(row_, "wait", category_);
  inner().finish(ticket);
  for (const Recv& recv : recvs)
    if (recv.peer != rank()) span.arg(from_[static_cast<std::size_t>(recv.peer)], recv.size);
}

void gather_trace(Communicator& comm, Trace& trace) {
  struct Statement {
    std::int64_t now, host, bytes;
  };
  Bytes mine = trace.pack();
  const int host = comm.host();
  barrier(comm);
  const Statement statement{Trace::Clock::now().time_since_epoch().count(), host,
                            static_cast<std::int64_t>(mine.size())};
  std::vector<Statement> all(static_cast<std::size_t>(comm.size()));
  Workspace work;
  allgather(comm, std::as_bytes(std::span(&statement, 1)), std::as_writable_bytes(std::span(all)), work);
  if (comm.rank() != 0) {
    const Send send{0, mine};
    comm.exchange({&send, 1}, {});
    return;
  }
  for (int r = 1; r < comm.size(); ++r) {
    const Statement& other = all[static_cast<std::size_t>(r)];
    mine.resize(static_cast<std::size_t>(other.bytes));
    Recv recv{r, mine};
    comm.exchange({}, {&recv, 1});
    expect_size(comm, "gather_trace", recv, mine.size());
    // One clock per host: that of its first rank.
    const auto first = static_cast<std::size_t>(other.host);
    const Trace::Clock::duration shift(other.host == host ? 0 : all[0].now - all.at(first).now);
    try {
      trace.merge(mine, shift);
    } catch (const UsageError& error) {
      fail_world(comm, "the trace of rank ", r, " arrived damaged: ", error.what());
    }
  }
}

}  // namespace oktopk
