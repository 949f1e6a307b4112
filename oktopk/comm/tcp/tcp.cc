// SPDX-License-Identifier: Apache-2.0
// Transport "tcp" (transports.h): a communicator is one channel of a TcpWorld. Operations are pooled, so that a warm
// communicator starts exchanges without allocating.
#include "oktopk/comm/transports.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/base/process_mark.h"
#include "oktopk/comm/tcp/mesh.h"
#include "oktopk/comm/tcp/world.h"
#include "oktopk/comm/transport_support.h"

namespace oktopk {
namespace {

class TcpCommunicator final : public Communicator {
 public:
  TcpCommunicator(std::shared_ptr<TcpWorld> world, std::vector<int> members, int rank, std::uint64_t channel)
      : world_(std::move(world)), members_(std::move(members)), rank_(rank), channel_(channel) {}

  ~TcpCommunicator() override {
    if (is_forked()) {
      leak(std::move(operations_));  // a thread of the parent may have been changing them
      return;
    }
    expel();
    operations_.for_each_taken([&](std::uint64_t ticket) { TcpCommunicator::abandon(ticket); });
    world_->leave(channel_, members_);
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  std::string_view transport() const override { return "tcp"; }
  Duration timeout() const override { return world_->timeout(); }

  std::unique_ptr<Communicator> split(int color, int key) override {
    Part part = agree_on_part(*this, color, key, 0);
    const std::vector<int> ranks = part.ranks;  // of this communicator
    for (int& rank : part.ranks) rank = to_world(rank);
    // A number that the members share and that no other channel between them has.
    const std::array<std::uint64_t, 3> name{channel_, ++splits_, static_cast<std::uint64_t>(part.ranks.front())};
    const std::uint64_t channel = hash_bytes(std::as_bytes(std::span(name)));
    return as_part(std::make_unique<TcpCommunicator>(world_, std::move(part.ranks), part.rank, channel), color, ranks);
  }

  int host() override {
    const std::uint64_t mine = world_->host_of(world_->rank());
    const auto first = std::ranges::find_if(members_, [&](int member) { return world_->host_of(member) == mine; });
    return static_cast<int>(first - members_.begin());
  }

  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override {
    const std::uint64_t ticket = operations_.take();
    TcpOperation& operation = operations_[ticket];
    operation.slots.clear();
    operation.slots.reserve(sends.size() + recvs.size());
    for (Recv& recv : recvs) operation.slots.push_back({&operation, to_world(recv.peer), channel_, {}, &recv});
    for (const Send& send : sends)
      operation.slots.push_back({&operation, to_world(send.peer), channel_, send.bytes, nullptr});
    try {
      world_->start(operation);
    } catch (...) {
      operations_.give_back(ticket);
      throw;
    }
    return ticket;
  }

  void finish(std::uint64_t ticket) override {
    try {
      world_->await(operations_[ticket]);
    } catch (...) {
      operations_.give_back(ticket);
      throw;
    }
    operations_.give_back(ticket);
  }

  void abandon(std::uint64_t ticket) noexcept override {
    if (is_forked()) return;
    kill();
    operations_.give_back(ticket);
  }
  void kill() noexcept override {
    if (!is_forked()) world_->kill(text_of("rank ", world_->rank(), " abandoned an exchange"));
  }
  bool can_kill_waits() const override { return true; }
  bool is_forked() const override { return world_->is_forked(); }
  void close_in_child() noexcept override { world_->close_in_child(); }

 private:
  int to_world(int rank) const { return members_[static_cast<std::size_t>(rank)]; }

  std::shared_ptr<TcpWorld> world_;
  std::vector<int> members_;  // ranks in the world
  int rank_;
  std::uint64_t channel_;
  std::uint64_t splits_ = 0;
  OperationPool<TcpOperation> operations_;
};

}  // namespace

bool tcp_available() { return true; }

std::unique_ptr<Communicator> make_tcp_world(const TcpOptions& options) {
  TcpMesh mesh = connect_mesh(options);
  std::vector<int> members;
  for (int rank = 0; rank < options.size; ++rank) members.push_back(rank);
  const TcpWorldOptions world{.rank = options.rank,
                              .host = mesh.host,
                              .timeout = std::min(options.timeout, kLongestTimeout),
                              .silence = options.silence,
                              .tags = {options.epoch, mesh.membership},
                              .early_bytes = options.early_bytes,
                              .look = options.look};
  return std::make_unique<TcpCommunicator>(TcpWorld::make(world, std::move(mesh.sessions)), std::move(members),
                                           options.rank, 0);
}

}  // namespace oktopk
