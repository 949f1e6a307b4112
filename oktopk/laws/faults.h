// SPDX-License-Identifier: Apache-2.0
// Communicators that disturb: jitter (the law of calm) and faults (the law of fault tolerance, "courage"). Each
// borrows the inner communicator, which must outlive it; split() splits the inner one and wraps the part alike.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "oktopk/base/bytes.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/decorators.h"

namespace oktopk {

// Every rank needs its own stream, and neighbouring seeds must not give neighbouring streams.
inline std::mt19937_64 disturbance_stream(std::uint64_t seed, int rank) {
  std::seed_seq sequence{seed & 0xffffffffu, seed >> 32, static_cast<std::uint64_t>(rank)};
  return std::mt19937_64(sequence);
}

// Sleeps for a random time up to `max_delay` before it begins and before it finishes an exchange. Results must not
// depend on it.
class JitterCommunicator final : public ForwardingCommunicator {
 public:
  JitterCommunicator(Communicator& inner, std::uint64_t seed, Duration max_delay = std::chrono::microseconds(200))
      : ForwardingCommunicator(inner), max_delay_(max_delay), random_(disturbance_stream(seed, rank())) {}
  JitterCommunicator(std::unique_ptr<Communicator> inner, std::uint64_t seed, Duration max_delay)
      : ForwardingCommunicator(std::move(inner)), max_delay_(max_delay), random_(disturbance_stream(seed, rank())) {}

  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<JitterCommunicator>(inner().split(color, key), random_(), max_delay_);
  }
  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override {
    delay();
    return inner().begin(sends, recvs);
  }
  void finish(std::uint64_t ticket) override {
    delay();
    inner().finish(ticket);
  }

 private:
  void delay() {
    std::uniform_int_distribution<Duration::rep> length(0, max_delay_.count());
    std::this_thread::sleep_for(Duration(length(random_)));
  }

  Duration max_delay_;
  std::mt19937_64 random_;
};

enum class FaultKind {
  none,
  die,       // gives up like a crashed rank: CommError from then on, nothing is sent any more
  drop,      // the message is not sent; the next one to this peer arrives in its place
  corrupt,   // one random bit is flipped
  truncate,  // a random number of bytes at the end is missing
  stall,     // sleeps for longer than the timeout before it sends
};
inline constexpr FaultKind kFaultKinds[] = {FaultKind::none,    FaultKind::die,      FaultKind::drop,
                                            FaultKind::corrupt, FaultKind::truncate, FaultKind::stall};
inline std::string_view to_string(FaultKind kind) {
  constexpr std::string_view kNames[] = {"none", "die", "drop", "corrupt", "truncate", "stall"};
  return kNames[static_cast<std::size_t>(kind)];
}

// Strikes once, at the rank's message number `at_message` (from 0, messages to oneself not counted); corrupt and
// truncate wait for the first message from there on that is not empty.
struct Fault {
  FaultKind kind = FaultKind::none;
  std::uint64_t at_message = 0;
  std::uint64_t seed = 0;
};

// A rank with a fault. The parts of split() share its plan and its count of messages.
class FaultyCommunicator final : public ForwardingCommunicator {
 public:
  FaultyCommunicator(Communicator& inner, const Fault& fault)
      : ForwardingCommunicator(inner), state_(std::make_shared<State>()) {
    state_->fault = fault;
    state_->random = disturbance_stream(fault.seed, rank());
  }

  bool has_struck() const { return state_->has_struck; }
  // From now on: the rank dies in place of this message, counted from 0.
  void die_at(std::uint64_t message) {
    state_->messages = 0;
    state_->fault = {FaultKind::die, message};
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    if (state_->is_dead) die();
    return std::unique_ptr<Communicator>(new FaultyCommunicator(inner().split(color, key), state_));
  }
  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override {
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
  void finish(std::uint64_t ticket) override {
    if (state_->is_dead) {
      inner().abandon(ticket);
      die();
    }
    inner().finish(ticket);
  }

 private:
  struct State {
    Fault fault;
    std::mt19937_64 random;
    std::uint64_t messages = 0;
    bool has_struck = false;
    bool is_dead = false;
    Bytes altered;  // the bytes sent in place of the caller's; there is one fault, so one buffer
  };
  FaultyCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<State> state)
      : ForwardingCommunicator(std::move(inner)), state_(std::move(state)) {}

  bool strikes(const Send& send) {
    const Fault& fault = state_->fault;
    if (fault.kind == FaultKind::none || state_->has_struck || send.peer == rank()) return false;
    const bool needs_bytes = fault.kind == FaultKind::corrupt || fault.kind == FaultKind::truncate;
    if (state_->messages++ < fault.at_message || (needs_bytes && send.bytes.empty())) return false;
    return state_->has_struck = true;
  }

  void strike(const Send& send) {
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
        Bytes& altered = state_->altered;
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
        // So long that a peer which comes late itself, on a busy machine, still waits for its timeout.
        std::this_thread::sleep_for(3 * timeout() + std::chrono::milliseconds(500));
        sends_.push_back(send);
        break;
    }
  }

  [[noreturn]] void die() {
    state_->is_dead = true;
    inner().kill();
    fail<CommError>("rank ", rank(), ": died of an injected fault");
  }

  std::shared_ptr<State> state_;
  std::vector<Send> sends_;
};

}  // namespace oktopk
