// SPDX-License-Identifier: Apache-2.0
// A communicator whose rank pays for what it receives: after every completed exchange a function is
// told how many seconds of work the bytes that arrived stand for (checking, decoding, merging). In
// a simulation that function lets the rank's clock run on; nothing else knows of it. Around another
// one, like those of oktopk/comm/decorators.h.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "oktopk/comm/decorators.h"

namespace oktopk {

class ChargingCommunicator final : public TrackingCommunicator<std::span<const Recv>> {
 public:
  using Charge = std::function<void(double seconds)>;

  // Messages to oneself cost nothing; an exchange that brings no bytes is not charged. REQUIRES:
  // seconds_per_byte finite and not negative, a charge that can be called.
  ChargingCommunicator(Communicator& inner, double seconds_per_byte, Charge charge);

  // The parts charge at the same price.
  std::unique_ptr<Communicator> split(int color, int key) override;
  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override;
  void finish(std::uint64_t ticket) override;

 private:
  ChargingCommunicator(std::unique_ptr<Communicator> inner, double seconds_per_byte, Charge charge);

  double seconds_per_byte_;
  Charge charge_;
};

}  // namespace oktopk
