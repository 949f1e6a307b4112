// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/fault_communicator.h"

#include <algorithm>
#include <chrono>

#include "oktopk/base/error.h"

namespace oktopk::faults {

FaultCommunicator::~FaultCommunicator() {
  operations_.for_each_taken([&](std::uint64_t ticket) { FaultCommunicator::abandon(ticket); });
  network_.close(seat_);
}

std::unique_ptr<Communicator> FaultCommunicator::split(int color, int key) {
  const Part part = agree_on_part(*this, color, key, splits_++);
  return std::make_unique<FaultCommunicator>(network_, network_.part(world_, part.number, part.ranks), part.rank,
                                             stall_);
}

std::uint64_t FaultCommunicator::begin(std::span<const Send> sends, std::span<Recv> recvs) {
  network_.scheduler().check_alive(seat_.actor);
  // An empty exchange is no operation: kill() makes one, and a death there would have nobody to unwind.
  const bool is_empty = sends.empty() && recvs.empty();
  if (!is_empty) maybe_stall();
  if (seat_.is_dead) throw_dead();
  const std::size_t sent = is_empty ? 0 : network_.enter(seat_, sends.size());
  for (const Send& send : sends.first(sent)) network_.send(seat_, send.peer, send.bytes);
  network_.scheduler().check_alive(seat_.actor);
  const std::uint64_t ticket = operations_.take();
  Operation& operation = operations_[ticket];
  operation.open = recvs.size();
  operation.begun = network_.scheduler().now();
  operation.peers.clear();
  for (Recv& recv : recvs) {
    operation.peers.push_back(recv.peer);
    seat_.posted[static_cast<std::size_t>(recv.peer)].push_back({&operation, &recv});
    network_.match(seat_, recv.peer);
  }
  return ticket;
}

void FaultCommunicator::finish(std::uint64_t ticket) {
  Operation& operation = operations_[ticket];
  std::string peers = "rank";
  for (const int peer : operation.peers) peers += text_of(" ", world_.names[static_cast<std::size_t>(peer)]);
  network_.waits(seat_, &operation);
  const auto is_over = [&] { return operation.open == 0 || seat_.is_dead; };
  const bool in_time = network_.scheduler().wait(seat_.actor, world_.timeout, is_over, peers);
  if (!in_time) network_.die(seat_, network_.blame(seat_, operation));
  network_.waits(seat_, nullptr);
  withdraw(operation);
  const bool is_complete = operation.open == 0;
  operations_.give_back(ticket);
  if (!is_complete) throw_dead();
}

void FaultCommunicator::abandon(std::uint64_t ticket) noexcept {
  if (!network_.scheduler().is_killed(seat_.actor))
    network_.die(seat_, text_of("rank ", world_.names[static_cast<std::size_t>(rank())], " abandoned an exchange"));
  network_.waits(seat_, nullptr);
  withdraw(operations_[ticket]);
  operations_.give_back(ticket);
}

void FaultCommunicator::throw_dead() const {
  fail<CommError>("faults: rank ", world_.names[static_cast<std::size_t>(rank())], ": ", seat_.reason);
}

// A rank that computes for a while: the others run ahead.
void FaultCommunicator::maybe_stall() {
  Scheduler& scheduler = network_.scheduler();
  if (scheduler.random().uniform() >= stall_) return;
  const std::chrono::microseconds length(scheduler.random().below(3000));
  scheduler.sleep(seat_.actor, length);
}

void FaultCommunicator::withdraw(const Operation& operation) {
  for (auto& posted : seat_.posted)
    std::erase_if(posted, [&](const Posted& entry) { return entry.operation == &operation; });
}

}  // namespace oktopk::faults
