// SPDX-License-Identifier: Apache-2.0
#include "tools/simulate/charging.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "oktopk/base/error.h"

namespace oktopk {

ChargingCommunicator::ChargingCommunicator(Communicator& inner, double seconds_per_byte,
                                           Charge charge)
    : ForwardingCommunicator(inner),
      seconds_per_byte_(seconds_per_byte),
      charge_(std::move(charge)) {
  require(std::isfinite(seconds_per_byte) && seconds_per_byte >= 0, "charging: ", seconds_per_byte,
          " seconds per byte, must be finite and not negative");
  require(static_cast<bool>(charge_), "charging: no function to charge with");
}

ChargingCommunicator::ChargingCommunicator(std::unique_ptr<Communicator> inner,
                                           double seconds_per_byte, Charge charge)
    : ForwardingCommunicator(std::move(inner)),
      seconds_per_byte_(seconds_per_byte),
      charge_(std::move(charge)) {}

std::unique_ptr<Communicator> ChargingCommunicator::split(int color, int key) {
  return std::unique_ptr<Communicator>(
      new ChargingCommunicator(inner().split(color, key), seconds_per_byte_, charge_));
}

std::uint64_t ChargingCommunicator::begin(std::span<const Send> sends, std::span<Recv> recvs) {
  const std::uint64_t ticket = inner().begin(sends, recvs);
  open_.push_back({ticket, recvs});
  return ticket;
}

std::span<const Recv> ChargingCommunicator::take(std::uint64_t ticket) {
  const auto at = std::find_if(open_.begin(), open_.end(),
                               [&](const Open& open) { return open.ticket == ticket; });
  OKTOPK_DCHECK(at != open_.end());
  const std::span<const Recv> recvs = at->recvs;
  *at = open_.back();
  open_.pop_back();
  return recvs;
}

void ChargingCommunicator::finish(std::uint64_t ticket) {
  const std::span<const Recv> recvs = take(ticket);
  inner().finish(ticket);
  std::size_t bytes = 0;
  for (const Recv& recv : recvs) bytes += recv.peer == rank() ? 0 : recv.size;
  if (bytes > 0) charge_(static_cast<double>(bytes) * seconds_per_byte_);
}

void ChargingCommunicator::abandon(std::uint64_t ticket) noexcept {
  take(ticket);
  inner().abandon(ticket);
}

}  // namespace oktopk
