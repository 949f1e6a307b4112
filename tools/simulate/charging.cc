// SPDX-License-Identifier: Apache-2.0
#include "tools/simulate/charging.h"

#include <cmath>
#include <utility>

#include "oktopk/base/error.h"

namespace oktopk {

ChargingCommunicator::ChargingCommunicator(Communicator& inner, double seconds_per_byte, Charge charge)
    : TrackingCommunicator(inner), seconds_per_byte_(seconds_per_byte), charge_(std::move(charge)) {
  require(std::isfinite(seconds_per_byte) && seconds_per_byte >= 0, "charging: ", seconds_per_byte,
          " seconds per byte, must be finite and not negative");
  require(static_cast<bool>(charge_), "charging: no function to charge with");
}

ChargingCommunicator::ChargingCommunicator(std::unique_ptr<Communicator> inner, double seconds_per_byte, Charge charge)
    : TrackingCommunicator(std::move(inner)), seconds_per_byte_(seconds_per_byte), charge_(std::move(charge)) {}

std::unique_ptr<Communicator> ChargingCommunicator::split(int color, int key) {
  return std::unique_ptr<Communicator>(new ChargingCommunicator(inner().split(color, key), seconds_per_byte_, charge_));
}

std::uint64_t ChargingCommunicator::begin(std::span<const Send> sends, std::span<Recv> recvs) {
  const std::uint64_t ticket = inner().begin(sends, recvs);
  keep(ticket, recvs);
  return ticket;
}

void ChargingCommunicator::finish(std::uint64_t ticket) {
  const std::span<const Recv> recvs = take(ticket);
  inner().finish(ticket);
  const std::uint64_t bytes = count_received(recvs, rank()).bytes;
  if (bytes > 0) charge_(static_cast<double>(bytes) * seconds_per_byte_);
}

}  // namespace oktopk
