// SPDX-License-Identifier: Apache-2.0
// Communicators around a communicator: one counts messages, one records them as events of a trace. Each borrows the
// inner one, which must outlive it, or owns it. split() splits the inner one and wraps the part in the same way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/trace/trace.h"

namespace oktopk {

// Passes everything on to `inner`; the base of the decorators.
class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(Communicator& inner) : inner_(&inner) { share_flight(inner); }
  explicit ForwardingCommunicator(std::unique_ptr<Communicator> inner)
      : owned_(std::move(inner)), inner_(owned_.get()) {
    share_flight(*inner_);
  }

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
  void kill() noexcept override { inner_->kill(); }
  bool can_kill_waits() const override { return inner_->can_kill_waits(); }
  bool is_forked() const override { return inner_->is_forked(); }
  void close_in_child() noexcept override { inner_->close_in_child(); }

 protected:
  Communicator& inner() { return *inner_; }

 private:
  std::unique_ptr<Communicator> owned_;
  Communicator* inner_;
};

// The base of decorators that come back to an exchange when it ends: keeps a Seen of each one in flight.
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

  // Returns the Seen of the exchange and forgets it.
  Seen take(std::uint64_t ticket) {
    const auto at = std::ranges::find(open_, ticket, &Open::first);
    OKTOPK_DCHECK(at != open_.end());
    const Seen seen = at->second;
    *at = open_.back();
    open_.pop_back();
    return seen;
  }

 private:
  using Open = std::pair<std::uint64_t, Seen>;
  std::vector<Open> open_;
};

// Messages to and from other ranks; those to oneself cross no wire.
struct Traffic {
  std::uint64_t messages_sent = 0;
  std::uint64_t messages_received = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  // Sum over exchanges of max(bytes sent, bytes received): the busy time of a full-duplex link, in bytes. Published
  // costs count this for algorithms whose ranks alternate between sending and receiving (the root of gTopk).
  std::uint64_t duplex_bytes = 0;
  std::uint64_t duplex_messages = 0;  // the same for messages
};

struct CountedExchange {
  MessageCount sent;
  std::span<const Recv> recvs;
};

// Counts what crosses the wire. The parts of split() add to the counters of the whole.
class CountingCommunicator final : public TrackingCommunicator<CountedExchange> {
 public:
  explicit CountingCommunicator(Communicator& inner)
      : TrackingCommunicator(inner), traffic_(std::make_shared<Traffic>()) {}

  // Exchanges that were started (sent) and finished (received) so far.
  const Traffic& traffic() const { return *traffic_; }
  void reset() { *traffic_ = {}; }

  std::unique_ptr<Communicator> split(int color, int key) override;
  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override;
  void finish(std::uint64_t ticket) override;

 private:
  CountingCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<Traffic> traffic)
      : TrackingCommunicator(std::move(inner)), traffic_(std::move(traffic)) {}

  std::shared_ptr<Traffic> traffic_;
};

// Records every start and every wait as a span, with the peers and the bytes of its messages to others.
class TracingCommunicator final : public TrackingCommunicator<std::span<const Recv>> {
 public:
  // inner: a Communicator& or its unique_ptr. ranks[r] is the number under which the trace shows rank r; empty: r
  // itself. The parts of split() show their own ranks, in category "part".
  template <class Inner>
  TracingCommunicator(Inner&& inner, const TraceRow& row, const std::vector<int>& ranks = {},
                      std::string_view category = "message")
      : TrackingCommunicator(std::forward<Inner>(inner)), row_(row.on_rank(rank())), category_(category) {
    name_peers(ranks);
  }

  std::unique_ptr<Communicator> split(int color, int key) override;
  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override;
  void finish(std::uint64_t ticket) override;

 private:
  void name_peers(const std::vector<int>& ranks);

  TraceRow row_;
  std::string_view category_;
  std::vector<std::string> to_, from_;  // by peer
};

}  // namespace oktopk
