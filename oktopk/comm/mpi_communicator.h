// SPDX-License-Identifier: Apache-2.0
// The inside of the transport "mpi": mpi.cc makes, splits and ends communicators, mpi_exchange.cc moves messages.
//
// split() makes no MPI communicator, because MPI_Comm_split has no timeout. A part is a list of ranks of the world's
// duplicated communicator, and a tag of its own keeps its messages apart.
// MPI cannot take back a message that has begun. So MPI reads and writes memory of the operation (MpiOperation), not
// of the caller, and an operation lives as long as MPI has a request of it (docs/decisions/0018-mpi-memory-is-ours.md).
// A receive is posted when its message is there and its size is known, never before (MpiInbox): Open MPI 4.1 writes
// a message that is too large behind the end of the buffer, and a receive that is not posted need not be cancelled.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "oktopk/base/bytes.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/comm/mpi.h"
#include "oktopk/comm/mpi_calls.h"
#include "oktopk/comm/transport_support.h"

namespace oktopk {

// The duplicated MPI communicator that a communicator shares with its parts.
struct MpiWorld {
  explicit MpiWorld(MPI_Comm duplicate) : comm(duplicate) { MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN); }
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;
  ~MpiWorld() {
    if (!is_kept && mpi_is_running()) MPI_Comm_free(&comm);
  }

  MPI_Comm comm;
  int next_tag = 0;      // no part that this rank is in uses this tag or a larger one
  bool is_kept = false;  // some message may still refer to comm: it is never freed
};

// The ranks of a communicator within its world.
struct MpiPlace {
  std::vector<int> ranks;  // of the world, by rank of the communicator
  int rank = 0;            // this one
  int tag = 0;
};

// One exchange: its messages and the memory that MPI uses for them, which is kept for the next exchange.
// COST: one copy of what is sent and one of what arrives; none in place.
class MpiOperation {
 public:
  struct Message {
    int peer = 0;
    std::byte* memory = nullptr;  // MPI reads or writes here
    std::size_t bytes = 0;        // size of a send, capacity of a receive
    MPI_Request request = MPI_REQUEST_NULL;
    bool is_complete = false;
  };

  // Receives first, then sends, in the order of start(). In place, MPI gets the caller's buffers.
  void prepare(std::span<const Send> sends, std::span<Recv> recvs, bool in_place);

  std::vector<Message>& messages() { return messages_; }
  bool is_receive(std::size_t i) const { return i < receives_; }
  std::string describe(std::size_t i) const;

  // Memory for message i, which has this size.
  std::byte* make_room(std::size_t i, std::size_t size);
  // Receive i is complete with this many bytes.
  void arrived(std::size_t i, std::size_t size);
  // Forgets the caller's buffers. True when MPI has no request of it any more.
  bool withdraw() noexcept;
  // In place: receives that have begun get `grace` to end; then MPI keeps the requests and the caller's buffers.
  void let_go(Communicator::Duration grace) noexcept;

 private:
  bool is_open() noexcept;

  std::vector<Message> messages_;
  std::vector<Bytes> memory_;  // by message
  std::span<Recv> recvs_;      // the caller's
  std::size_t receives_ = 0;
  bool in_place_ = false;
};

// A queue that keeps its memory.
template <class T>
class Fifo {
 public:
  bool empty() const { return first_ == items_.size(); }
  void push(const T& item) { items_.push_back(item); }
  T pop() {
    const T item = items_[first_++];
    if (empty()) items_.clear(), first_ = 0;
    return item;
  }

 private:
  std::vector<T> items_;
  std::size_t first_ = 0;
};

// Matches arrived messages with receives: the n-th message from a rank belongs to the n-th receive from that rank.
class MpiInbox {
 public:
  struct Receive {
    MpiOperation* operation;
    std::size_t i;  // its message
  };
  struct Arrived {
    MPI_Message handle;
    std::size_t size;
  };

  explicit MpiInbox(std::size_t peers) : waiting_(peers), arrived_(peers) {}

  // The message for this receive, if it is here; otherwise the receive waits for it.
  std::optional<Arrived> take(int peer, const Receive& receive) {
    return match(receive, waiting_[static_cast<std::size_t>(peer)], awaited_, arrived_[static_cast<std::size_t>(peer)],
                 unclaimed_);
  }
  // The receive that waits for this message, if one does; otherwise the message waits.
  std::optional<Receive> take(int peer, const Arrived& arrived) {
    return match(arrived, arrived_[static_cast<std::size_t>(peer)], unclaimed_,
                 waiting_[static_cast<std::size_t>(peer)], awaited_);
  }

  bool is_awaited() const { return awaited_ > 0; }
  bool has_unclaimed() const { return unclaimed_ > 0; }

 private:
  template <class Mine, class Theirs>
  static std::optional<Theirs> match(const Mine& mine, Fifo<Mine>& own, std::size_t& own_count, Fifo<Theirs>& others,
                                     std::size_t& other_count) {
    if (others.empty()) {
      own.push(mine);
      ++own_count;
      return std::nullopt;
    }
    --other_count;
    return others.pop();
  }

  std::vector<Fifo<Receive>> waiting_;  // by peer
  std::vector<Fifo<Arrived>> arrived_;  // by peer
  std::size_t awaited_ = 0;
  std::size_t unclaimed_ = 0;
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<MpiWorld> world, MpiPlace place, const MpiOptions& options);
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
  bool withdraw(MpiOperation& operation) noexcept;
  int world_rank(int peer) const { return place_.ranks[static_cast<std::size_t>(peer)]; }
  bool in_place() const { return options_.in_place || options_.blocking; }
  void give_up(const std::string& reason) noexcept;
  [[noreturn]] void die(const std::string& reason);
  void require_alive();

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
