// SPDX-License-Identifier: Apache-2.0
// A communicator around another one that adds up the time its rank spends inside: starting exchanges and waiting for
// them, which includes waiting for late ranks.
#pragma once

#include <memory>
#include <utility>

#include "oktopk/base/timer.h"
#include "oktopk/comm/decorators.h"

namespace oktopk {

class TimingCommunicator final : public ForwardingCommunicator {
 public:
  explicit TimingCommunicator(Communicator& inner)
      : ForwardingCommunicator(inner), seconds_(std::make_shared<double>(0)) {}

  // Since the last reset(), including communicators split from this one.
  double seconds() const { return *seconds_; }
  void reset() { *seconds_ = 0; }

  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::unique_ptr<Communicator>(new TimingCommunicator(inner().split(color, key), seconds_));
  }
  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override {
    Timer timer;
    const std::uint64_t ticket = inner().begin(sends, recvs);
    *seconds_ += timer.lap();
    return ticket;
  }
  void finish(std::uint64_t ticket) override {
    Timer timer;
    inner().finish(ticket);
    *seconds_ += timer.lap();
  }

 private:
  TimingCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<double> seconds)
      : ForwardingCommunicator(std::move(inner)), seconds_(std::move(seconds)) {}

  std::shared_ptr<double> seconds_;
};

}  // namespace oktopk
