// SPDX-License-Identifier: Apache-2.0
// A communicator that knows how long its rank was inside it: starting exchanges and waiting for
// them, which includes waiting for ranks that are late. Around another one, like those of
// oktopk/comm/decorators.h.
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

  // Since the last reset(); the parts of split() add to it.
  double seconds() const { return *seconds_; }
  void reset() { *seconds_ = 0; }

  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::unique_ptr<Communicator>(new TimingCommunicator(inner().split(color, key), seconds_));
  }
  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override {
    const Lap lap{*seconds_};
    return inner().begin(sends, recvs);
  }
  void finish(std::uint64_t ticket) override {
    const Lap lap{*seconds_};
    inner().finish(ticket);
  }

 private:
  struct Lap {
    explicit Lap(double& to) : sum(to) {}
    ~Lap() { sum += timer.lap(); }
    Lap(const Lap&) = delete;
    Lap& operator=(const Lap&) = delete;
    double& sum;
    Timer timer;
  };
  TimingCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<double> seconds)
      : ForwardingCommunicator(std::move(inner)), seconds_(std::move(seconds)) {}

  std::shared_ptr<double> seconds_;
};

}  // namespace oktopk
