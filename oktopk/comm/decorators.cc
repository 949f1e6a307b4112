// SPDX-License-Identifier: Apache-2.0
// Counting, jitter and faults around a communicator (decorators.h).
#include "oktopk/comm/decorators.h"

#include <algorithm>
#include <thread>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

constexpr std::string_view kFaultNames[] = {"none", "die", "drop", "corrupt", "truncate", "stall"};
static_assert(std::size(kFaultNames) == std::size(kFaultKinds));

// Every rank needs its own stream, and neighbouring seeds must not give neighbouring ones.
std::mt19937_64 stream(std::uint64_t seed, int rank) {
  std::seed_seq sequence{seed & 0xffffffffu, seed >> 32, static_cast<std::uint64_t>(rank)};
  return std::mt19937_64(sequence);
}

}  // namespace

CountingCommunicator::CountingCommunicator(Communicator& inner)
    : TrackingCommunicator(inner), traffic_(std::make_shared<Traffic>()) {}

CountingCommunicator::CountingCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<Traffic> traffic)
    : TrackingCommunicator(std::move(inner)), traffic_(std::move(traffic)) {}

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

JitterCommunicator::JitterCommunicator(Communicator& inner, std::uint64_t seed, Duration max_delay)
    : ForwardingCommunicator(inner), max_delay_(max_delay), random_(stream(seed, rank())) {}

JitterCommunicator::JitterCommunicator(std::unique_ptr<Communicator> inner, std::uint64_t seed, Duration max_delay)
    : ForwardingCommunicator(std::move(inner)), max_delay_(max_delay), random_(stream(seed, rank())) {}

std::unique_ptr<Communicator> JitterCommunicator::split(int color, int key) {
  return std::unique_ptr<Communicator>(new JitterCommunicator(inner().split(color, key), random_(), max_delay_));
}

void JitterCommunicator::delay() {
  std::uniform_int_distribution<Duration::rep> length(0, max_delay_.count());
  std::this_thread::sleep_for(Duration(length(random_)));
}

std::uint64_t JitterCommunicator::begin(std::span<const Send> sends, std::span<Recv> recvs) {
  delay();
  return inner().begin(sends, recvs);
}

void JitterCommunicator::finish(std::uint64_t ticket) {
  delay();
  inner().finish(ticket);
}

std::string_view to_string(FaultKind kind) { return kFaultNames[static_cast<int>(kind)]; }

FaultKind parse_fault_kind(std::string_view name) {
  for (const FaultKind kind : kFaultKinds) {
    if (to_string(kind) == name) return kind;
  }
  fail<UsageError>("fault \"", name, "\": expected none, die, drop, corrupt, truncate or stall");
}

FaultyCommunicator::FaultyCommunicator(Communicator& inner, const Fault& fault)
    : ForwardingCommunicator(inner), state_(std::make_shared<State>()) {
  state_->fault = fault;
  state_->random = stream(fault.seed, rank());
}

FaultyCommunicator::FaultyCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<State> state)
    : ForwardingCommunicator(std::move(inner)), state_(std::move(state)) {}

std::unique_ptr<Communicator> FaultyCommunicator::split(int color, int key) {
  if (state_->is_dead) die();
  return std::unique_ptr<Communicator>(new FaultyCommunicator(inner().split(color, key), state_));
}

bool FaultyCommunicator::strikes(const Send& send) {
  const Fault& fault = state_->fault;
  if (fault.kind == FaultKind::none || state_->has_struck || send.peer == rank()) return false;
  const bool needs_bytes = fault.kind == FaultKind::corrupt || fault.kind == FaultKind::truncate;
  if (state_->messages++ < fault.at_message || (needs_bytes && send.bytes.empty())) return false;
  return state_->has_struck = true;
}

void FaultyCommunicator::strike(const Send& send) {
  Bytes& altered = state_->altered;
  const auto random_below = [&](std::size_t limit) {
    return std::uniform_int_distribution<std::size_t>(0, limit - 1)(state_->random);
  };
  switch (state_->fault.kind) {
    case FaultKind::none:
      sends_.push_back(send);
      break;
    case FaultKind::die:
      die();
    case FaultKind::drop:
      break;
    case FaultKind::corrupt: {
      altered.assign(send.bytes.begin(), send.bytes.end());
      const std::size_t bit = random_below(altered.size() * 8);
      altered[bit / 8] ^= std::byte{1} << (bit % 8);
      sends_.push_back({send.peer, altered});
      break;
    }
    case FaultKind::truncate:
      sends_.push_back({send.peer, send.bytes.first(random_below(send.bytes.size()))});
      break;
    case FaultKind::stall:
      // So long that a peer which comes late itself, on a busy machine, still waits for its
      // timeout.
      std::this_thread::sleep_for(3 * timeout() + std::chrono::milliseconds(500));
      sends_.push_back(send);
      break;
  }
}

void FaultyCommunicator::die() {
  state_->is_dead = true;
  inner().kill();
  fail<CommError>("rank ", rank(), ": died of an injected fault");
}

std::uint64_t FaultyCommunicator::begin(std::span<const Send> sends, std::span<Recv> recvs) {
  if (state_->is_dead) die();
  sends_.clear();
  for (const Send& send : sends) {
    if (strikes(send)) {
      strike(send);
    } else {
      sends_.push_back(send);
    }
  }
  return inner().begin(sends_, recvs);
}

void FaultyCommunicator::finish(std::uint64_t ticket) {
  if (state_->is_dead) {
    inner().abandon(ticket);
    die();
  }
  inner().finish(ticket);
}

}  // namespace oktopk
