// SPDX-License-Identifier: Apache-2.0
// A communicator that writes down every exchange of one step: who got how much, in which order. It
// is how a study tells the phases of an algorithm apart from outside.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "oktopk/comm/decorators.h"

namespace oktopk {

struct Exchange {
  std::size_t messages_received = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
};

struct LoggedExchange {
  std::size_t at;  // in exchanges()
  std::span<const Recv> recvs;
};

class LoggingCommunicator final : public TrackingCommunicator<LoggedExchange> {
 public:
  explicit LoggingCommunicator(Communicator& inner) : TrackingCommunicator(inner) {}

  const std::vector<Exchange>& exchanges() const { return exchanges_; }  // in the order begun
  void reset() { exchanges_.clear(); }

  // The parts are not traced.
  std::unique_ptr<Communicator> split(int color, int key) override { return inner().split(color, key); }
  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override;
  void finish(std::uint64_t ticket) override;

 private:
  std::vector<Exchange> exchanges_;
};

}  // namespace oktopk
