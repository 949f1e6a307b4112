// SPDX-License-Identifier: Apache-2.0
// Transport "threads" (transports.h): a communicator is one rank of a ThreadWorld. Operations are pooled, so that a
// warm communicator starts exchanges without allocating.
#include "oktopk/comm/transports.h"

#include <exception>
#include <string>
#include <thread>

#include "oktopk/base/error.h"
#include "oktopk/comm/threads/thread_world.h"
#include "oktopk/comm/transport_support.h"

namespace oktopk {
namespace {

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadWorld> world, int rank) : world_(std::move(world)), rank_(rank) {}

  ~ThreadCommunicator() override {
    if (is_forked()) return;
    expel();
    operations_.for_each_taken([&](std::uint64_t ticket) { ThreadCommunicator::abandon(ticket); });
    world_->leave(rank_);
  }

  int rank() const override { return rank_; }
  int size() const override { return world_->size(); }
  std::string_view transport() const override { return "threads"; }
  Duration timeout() const override { return world_->timeout(); }

  std::unique_ptr<Communicator> split(int color, int key) override {
    const Part part = agree_on_part(*this, color, key, splits_++);
    return as_part(std::make_unique<ThreadCommunicator>(world_->part(part.number, part.ranks), part.rank), color,
                   part.ranks);
  }

  int host() override { return 0; }

  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override {
    if (world_->is_dead()) world_->throw_dead(rank_);
    const std::uint64_t ticket = operations_.take();
    ThreadWorld::Operation& operation = operations_[ticket];
    operation.slots.clear();
    operation.slots.reserve(sends.size() + recvs.size());
    for (Recv& recv : recvs) operation.slots.push_back({&operation, rank_, recv.peer, {}, &recv});
    for (const Send& send : sends) operation.slots.push_back({&operation, rank_, send.peer, send.bytes});
    world_->post(operation);
    return ticket;
  }

  void finish(std::uint64_t ticket) override {
    world_->await(rank_, operations_[ticket]);
    operations_.give_back(ticket);
  }

  void abandon(std::uint64_t ticket) noexcept override {
    kill();
    world_->withdraw(operations_[ticket]);
    operations_.give_back(ticket);
  }
  void kill() noexcept override {
    if (!is_forked()) world_->kill(rank_, "rank " + std::to_string(rank_) + " abandoned an exchange");
  }
  bool can_kill_waits() const override { return true; }
  bool is_forked() const override { return world_->is_forked(); }

 private:
  std::shared_ptr<ThreadWorld> world_;
  int rank_;
  int splits_ = 0;
  OperationPool<ThreadWorld::Operation> operations_;
};

std::shared_ptr<ThreadWorld> new_world(int P, Communicator::Duration timeout) {
  require(P >= 1, "threads: a world of size ", P, ", must be at least 1");
  require(timeout > Communicator::Duration::zero(), "threads: the timeout must be positive");
  return ThreadWorld::make(P, timeout);
}

std::vector<std::unique_ptr<Communicator>> make_ranks(const std::shared_ptr<ThreadWorld>& world) {
  std::vector<std::unique_ptr<Communicator>> comms;
  for (int rank = 0; rank < world->size(); ++rank) comms.push_back(std::make_unique<ThreadCommunicator>(world, rank));
  return comms;
}

// Runs the body of one rank and kills the world if it throws. The communicator ends here, before the thread does:
// nobody waits for a rank that returned.
std::exception_ptr run_rank(ThreadWorld& world, std::unique_ptr<Communicator> comm,
                            const std::function<void(Communicator&)>& body) {
  const int rank = comm->rank();
  try {
    body(*comm);
    return nullptr;
  } catch (const std::exception& error) {
    world.kill(rank, text_of("rank ", rank, " failed: ", error.what()));
    return std::current_exception();
  } catch (...) {
    world.kill(rank, text_of("rank ", rank, " failed"));
    return std::current_exception();
  }
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_world(int P, Communicator::Duration timeout) {
  return make_ranks(new_world(P, timeout));
}

void run_threads(int P, const std::function<void(Communicator&)>& body, Communicator::Duration timeout) {
  const auto world = new_world(P, timeout);
  auto comms = make_ranks(world);
  std::vector<std::exception_ptr> errors(comms.size());
  std::vector<std::jthread> threads;
  try {
    for (std::size_t r = 0; r < comms.size(); ++r)
      threads.emplace_back([&, r] { errors[r] = run_rank(*world, std::move(comms[r]), body); });
  } catch (...) {
    world->kill(-1, "a thread could not be started");  // before the others are joined
    throw;
  }
  threads.clear();  // joins
  // Once the world is dead every rank fails. The error of the rank that killed it is the cause: it comes first.
  if (world->killer() > 0) std::swap(errors.front(), errors[static_cast<std::size_t>(world->killer())]);
  for (const std::exception_ptr& error : errors)
    if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace oktopk
