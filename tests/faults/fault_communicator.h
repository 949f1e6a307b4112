// SPDX-License-Identifier: Apache-2.0
// One rank of a simulated world as a Communicator. Sends are copied and complete at once; a wait passes the baton on.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "oktopk/comm/communicator.h"
#include "oktopk/comm/transport_support.h"
#include "tests/faults/network.h"

namespace oktopk::faults {

class FaultCommunicator final : public Communicator {
 public:
  // REQUIRES: the network outlives it. By the actor whose seat it is.
  FaultCommunicator(Network& network, World& world, int rank, double stall)
      : network_(network), world_(world), seat_(world.seats[static_cast<std::size_t>(rank)]), stall_(stall) {}
  ~FaultCommunicator() override;

  int rank() const override { return seat_.rank; }
  int size() const override { return static_cast<int>(world_.seats.size()); }
  std::string_view transport() const override { return "faults"; }
  Duration timeout() const override { return world_.timeout; }
  int host() override { return 0; }
  std::unique_ptr<Communicator> split(int color, int key) override;
  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override;
  void finish(std::uint64_t ticket) override;
  void abandon(std::uint64_t ticket) noexcept override;

 private:
  [[noreturn]] void throw_dead() const;
  void maybe_stall();
  void withdraw(const Operation& operation);

  Network& network_;
  World& world_;
  Seat& seat_;
  double stall_;
  int splits_ = 0;
  OperationPool<Operation> operations_;
};

}  // namespace oktopk::faults
