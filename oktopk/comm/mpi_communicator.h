// SPDX-License-Identifier: Apache-2.0
// A rank's communicator of the transport "mpi": mpi.cc has its life and its parts, mpi_exchange.cc
// moves the messages. Several may share an MPI communicator (mpi_world.h).
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "oktopk/comm/collectives.h"
#include "oktopk/comm/mpi.h"
#include "oktopk/comm/mpi_inbox.h"
#include "oktopk/comm/mpi_operation.h"
#include "oktopk/comm/mpi_world.h"
#include "oktopk/comm/transport_support.h"

namespace oktopk {

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<MpiWorld> world, MpiPlace place, const MpiOptions& options)
      : world_(std::move(world)),
        place_(std::move(place)),
        options_(options),
        operations_(std::make_unique<OperationPool<MpiOperation>>()) {
    inbox_.resize(place_.ranks.size());
  }
  ~MpiCommunicator() override;

  int rank() const override { return place_.rank; }
  int size() const override { return static_cast<int>(place_.ranks.size()); }
  std::string_view transport() const override { return "mpi"; }
  Duration timeout() const override { return options_.timeout; }

  std::unique_ptr<Communicator> split(int color, int key) override;
  int host() override;
  void require_any_thread() const override;
  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override;
  void finish(std::uint64_t ticket) override;
  void abandon(std::uint64_t ticket) noexcept override;

 private:
  void post(MpiOperation& operation);
  void expect(MpiOperation& operation, std::size_t i);
  void collect();
  void receive(const MpiInbox::Receive& what, MpiInbox::Arrived arrived);
  void check(int code, const MpiOperation& operation, std::size_t i);
  void wait_for(MpiOperation& operation);
  bool test(MpiOperation& operation, std::size_t i);
  std::size_t bytes_of(MPI_Status& status) const;
  int world_rank(int peer) const { return place_.ranks[static_cast<std::size_t>(peer)]; }
  bool withdraw(MpiOperation& operation) noexcept;
  void give_up(const std::string& reason) noexcept;
  [[noreturn]] void die(const std::string& reason);
  void require_alive();
  bool in_place() const { return options_.in_place || options_.blocking; }

  std::shared_ptr<MpiWorld> world_;
  MpiPlace place_;
  MpiOptions options_;
  bool is_dead_ = false;
  std::string reason_;
  std::unique_ptr<OperationPool<MpiOperation>> operations_;
  MpiInbox inbox_;
  Workspace work_;
};

}  // namespace oktopk
