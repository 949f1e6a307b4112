// SPDX-License-Identifier: Apache-2.0
// Communicators around a communicator: counting (for honesty: law 4), jitter (calm: law 5) and
// faults (courage: law 6). Each borrows the inner one, which must outlive it, and changes nothing
// but what it is for; split() splits the inner one and wraps the part in the same way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "oktopk/base/bytes.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/communicator.h"

namespace oktopk {

// Of messages to others, as in MessageCount.
struct Traffic {
  std::uint64_t messages_sent = 0;
  std::uint64_t messages_received = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  // Sum over exchanges of max(bytes sent, bytes received): a full-duplex link's busy time in bytes.
  // For an algorithm whose ranks alternate between sending and receiving (gTopk's root), this is
  // what its published cost counts.
  std::uint64_t duplex_bytes = 0;
  std::uint64_t duplex_messages = 0;  // the same for messages
};

// Passes everything on to `inner`; the base of the decorators.
class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(Communicator& inner) : inner_(&inner) {}
  explicit ForwardingCommunicator(std::unique_ptr<Communicator> inner)
      : owned_(std::move(inner)), inner_(owned_.get()) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view transport() const override { return inner_->transport(); }
  Duration timeout() const override { return inner_->timeout(); }
  int host() override { return inner_->host(); }
  void require_any_thread() const override { inner_->require_any_thread(); }
  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override {
    return inner_->begin(sends, recvs);
  }
  void finish(std::uint64_t ticket) override { inner_->finish(ticket); }
  void abandon(std::uint64_t ticket) noexcept override { inner_->abandon(ticket); }

 protected:
  Communicator& inner() { return *inner_; }

 private:
  std::unique_ptr<Communicator> owned_;
  Communicator* inner_;
};

// The base of decorators that come back to an exchange when it ends: keeps a Seen of each one in
// flight.
template <class Seen>
class TrackingCommunicator : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

  void abandon(std::uint64_t ticket) noexcept override {
    take(ticket);
    inner().abandon(ticket);
  }

 protected:
  void keep(std::uint64_t ticket, const Seen& seen) { open_.push_back({ticket, seen}); }

  // What was kept, once.
  Seen take(std::uint64_t ticket) {
    const auto at = std::find_if(open_.begin(), open_.end(), [&](const Open& open) { return open.ticket == ticket; });
    OKTOPK_DCHECK(at != open_.end());
    const Seen seen = at->seen;
    *at = open_.back();
    open_.pop_back();
    return seen;
  }

 private:
  struct Open {
    std::uint64_t ticket;
    Seen seen;
  };
  std::vector<Open> open_;
};

struct CountedExchange {
  MessageCount sent;
  std::span<const Recv> recvs;
};

// Counts what crosses the wire. The parts of split() add to the counters of the whole.
class CountingCommunicator final : public TrackingCommunicator<CountedExchange> {
 public:
  explicit CountingCommunicator(Communicator& inner);

  // What was started (sent) and finished (received) so far.
  const Traffic& traffic() const { return *traffic_; }
  void reset() { *traffic_ = {}; }

  std::unique_ptr<Communicator> split(int color, int key) override;
  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override;
  void finish(std::uint64_t ticket) override;

 private:
  CountingCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<Traffic> traffic);

  std::shared_ptr<Traffic> traffic_;
};

// Sleeps for a random time up to `max_delay` before it begins and before it finishes an exchange.
// Results must not depend on it.
class JitterCommunicator final : public ForwardingCommunicator {
 public:
  JitterCommunicator(Communicator& inner, std::uint64_t seed, Duration max_delay = std::chrono::microseconds(200));

  std::unique_ptr<Communicator> split(int color, int key) override;
  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override;
  void finish(std::uint64_t ticket) override;

 private:
  JitterCommunicator(std::unique_ptr<Communicator> inner, std::uint64_t seed, Duration max_delay);
  void delay();

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
std::string_view to_string(FaultKind kind);
FaultKind parse_fault_kind(std::string_view name);

// Strikes once, at the rank's message number `at_message` (from 0, messages to oneself not
// counted); corrupt and truncate wait for the first message from there on that is not empty.
struct Fault {
  FaultKind kind = FaultKind::none;
  std::uint64_t at_message = 0;
  std::uint64_t seed = 0;
};

// A rank with a fault. The parts of split() share its plan and its count of messages.
class FaultyCommunicator final : public ForwardingCommunicator {
 public:
  FaultyCommunicator(Communicator& inner, const Fault& fault);

  bool has_struck() const { return state_->has_struck; }

  std::unique_ptr<Communicator> split(int color, int key) override;
  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override;
  void finish(std::uint64_t ticket) override;

 private:
  struct State {
    Fault fault;
    std::mt19937_64 random;
    std::uint64_t messages = 0;
    bool has_struck = false;
    bool is_dead = false;
    Bytes altered;  // the bytes sent in place of the caller's; there is one fault, so one buffer
  };
  FaultyCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<State> state);
  bool strikes(const Send& send);
  void strike(const Send& send);
  [[noreturn]] void die();

  std::shared_ptr<State> state_;
  std::vector<Send> sends_;
};

}  // namespace oktopk
