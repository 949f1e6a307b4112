// SPDX-License-Identifier: Apache-2.0
// The inside of the transport "mpi": mpi.cc makes, splits and ends communicators, mpi_exchange.cc moves messages.
//
// split() makes no MPI communicator, because MPI_Comm_split has no timeout. A part is a list of ranks of the world's
// duplicated communicator, and a tag of its own keeps its messages apart.
// MPI cannot take back a message that has begun. So MPI reads and writes memory of the operation (MpiOperation), not
// of the caller, and an operation lives as long as MPI has a request of it (docs/decisions/0018-mpi-memory-is-ours.md).
// A receive is posted when its message is there and its size is known, never before (MpiInbox): Open MPI 4.1 writes
// a message that is too large behind the end of the buffer, and a receive that is not posted need not be cancelled.
// A rank that gives up tells its peers by a message with a tag of its own (last words), which a rank that waits hears.
// A rank that only lost its patience tells nobody: a peer that comes late still finds what was sent.
#pragma once

#include <algorithm>
#include <array>
#include <climits>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "oktopk/base/bytes.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/comm/mpi_comm.h"
#include "oktopk/comm/transport_support.h"
#include "oktopk/comm/transports.h"

namespace oktopk {

inline std::string mpi_error_text(int code) {
  char buffer[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, buffer, &length) != MPI_SUCCESS) return "MPI error " + std::to_string(code);
  return std::string(buffer, static_cast<std::size_t>(length));
}

// The name of a thread level, as MPI has it.
inline std::string mpi_thread_level(int level) {
  if (level == MPI_THREAD_SINGLE) return "MPI_THREAD_SINGLE";
  if (level == MPI_THREAD_FUNNELED) return "MPI_THREAD_FUNNELED";
  if (level == MPI_THREAD_SERIALIZED) return "MPI_THREAD_SERIALIZED";
  return level == MPI_THREAD_MULTIPLE ? "MPI_THREAD_MULTIPLE" : std::to_string(level);
}

// Describes `bytes` bytes to MPI, whose counts are int: directly, or as one element of a derived type.
class MpiShape {
 public:
  MpiShape(std::size_t bytes, std::size_t chunk) {
    if (bytes <= chunk) {
      count_ = static_cast<int>(bytes);
      return;
    }
    const std::size_t chunks = bytes / chunk;
    require(chunks <= INT_MAX, "mpi: a message of ", bytes, " bytes");
    MPI_Datatype block = MPI_DATATYPE_NULL;
    MPI_Type_contiguous(static_cast<int>(chunk), MPI_BYTE, &block);
    const int lengths[] = {static_cast<int>(chunks), static_cast<int>(bytes % chunk)};
    const MPI_Aint places[] = {0, static_cast<MPI_Aint>(chunks * chunk)};
    const MPI_Datatype types[] = {block, MPI_BYTE};
    MPI_Type_create_struct(2, lengths, places, types, &type_);
    MPI_Type_commit(&type_);
    MPI_Type_free(&block);
    count_ = 1;
  }
  MpiShape(const MpiShape&) = delete;
  MpiShape& operator=(const MpiShape&) = delete;
  // MPI keeps the type for as long as a started message needs it.
  ~MpiShape() {
    if (type_ != MPI_BYTE) MPI_Type_free(&type_);
  }

  int count() const { return count_; }
  MPI_Datatype type() const { return type_; }

 private:
  int count_ = 0;
  MPI_Datatype type_ = MPI_BYTE;
};

// While it lives, errors are return codes also in calls that name no communicator, such as MPI_Test. MPI gives those
// errors to the handler of MPI_COMM_WORLD (MPI 3) or MPI_COMM_SELF (MPI 4), which ends the program by default. Does
// nothing for a simulator (blocking): its ranks share those handlers, and it ends the program with a message.
class MpiErrorsReturn {
 public:
  explicit MpiErrorsReturn(bool blocking) : is_active_(!blocking) {
    if (!is_active_) return;
    for (std::size_t i = 0; i < comms_.size(); ++i) {
      MPI_Comm_get_errhandler(comms_[i], &saved_[i]);
      MPI_Comm_set_errhandler(comms_[i], MPI_ERRORS_RETURN);
    }
  }
  MpiErrorsReturn(const MpiErrorsReturn&) = delete;
  MpiErrorsReturn& operator=(const MpiErrorsReturn&) = delete;
  ~MpiErrorsReturn() {
    if (!is_active_) return;
    for (std::size_t i = 0; i < comms_.size(); ++i) {
      MPI_Comm_set_errhandler(comms_[i], saved_[i]);
      MPI_Errhandler_free(&saved_[i]);
    }
  }

 private:
  std::array<MPI_Comm, 2> comms_{MPI_COMM_WORLD, MPI_COMM_SELF};
  std::array<MPI_Errhandler, 2> saved_{};
  bool is_active_;
};

// The duplicated MPI communicator that a communicator shares with its parts.
struct MpiWorld {
  explicit MpiWorld(MPI_Comm duplicate) : comm(duplicate) { MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN); }
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;
  ~MpiWorld() {
    if (!is_kept && mpi_is_running()) MPI_Comm_free(&comm);
  }

  MPI_Comm comm;
  int last_tag = 0;      // that MPI allows; last words use tags from there downwards
  int next_tag = 0;      // no part that this rank is in uses this tag or a larger one
  bool is_kept = false;  // some message may still refer to comm: it is never freed
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
  void prepare(std::span<const Send> sends, std::span<Recv> recvs, bool in_place) {
    messages_.clear();
    for (const Recv& recv : recvs) messages_.push_back({recv.peer, recv.buffer.data(), recv.buffer.size()});
    for (const Send& send : sends)
      messages_.push_back({send.peer, const_cast<std::byte*>(send.bytes.data()), send.bytes.size()});
    recvs_ = recvs;
    receives_ = recvs.size();
    in_place_ = in_place;
    if (in_place) return;
    if (memory_.size() < messages_.size()) memory_.resize(messages_.size());
    for (std::size_t i = receives_; i < messages_.size(); ++i) {
      const std::byte* from = messages_[i].memory;
      std::copy_n(from, messages_[i].bytes, make_room(i, messages_[i].bytes));
    }
  }

  std::vector<Message>& messages() { return messages_; }
  bool is_receive(std::size_t i) const { return i < receives_; }
  std::string describe(std::size_t i) const {
    const Message& message = messages_[i];
    if (!is_receive(i)) return text_of("send to rank ", message.peer);
    return text_of("receive from rank ", message.peer, ", capacity ", message.bytes, " bytes");
  }

  // Memory for message i, which has this size.
  std::byte* make_room(std::size_t i, std::size_t size) {
    if (in_place_) return messages_[i].memory;
    Bytes& room = memory_[i];
    if (room.size() < size) {
      room.clear();  // growing must not copy the old content
      room.resize(size);
    }
    return messages_[i].memory = room.data();
  }

  // Receive i is complete with this many bytes.
  void arrived(std::size_t i, std::size_t size) {
    recvs_[i].size = size;
    if (!in_place_) std::copy_n(messages_[i].memory, size, recvs_[i].buffer.data());
  }

  // Forgets the caller's buffers. True when MPI has no request of it any more.
  bool withdraw() noexcept {
    recvs_ = {};
    return !is_open();
  }

  // In place: receives that have begun get `grace` to end; then MPI keeps the requests and the caller's buffers.
  void let_go(Communicator::Duration grace) noexcept {
    poll(grace, [&] { return !is_open(); });
    for (Message& message : messages_)
      if (message.request != MPI_REQUEST_NULL) MPI_Request_free(&message.request);
  }

 private:
  bool is_open() noexcept {
    bool is_open = false;
    for (Message& message : messages_) {
      int is_done = 1;
      if (message.request != MPI_REQUEST_NULL) MPI_Test(&message.request, &is_done, MPI_STATUS_IGNORE);
      is_open = is_open || is_done == 0;
    }
    return is_open;
  }

  std::vector<Message> messages_;
  std::vector<Bytes> memory_;  // by message
  std::span<Recv> recvs_;      // the caller's
  std::size_t receives_ = 0;
  bool in_place_ = false;
};

// Matches arrived messages with receives: the n-th message from a rank belongs to the n-th receive from that rank.
struct MpiInbox {
  struct Receive {
    int peer;
    MpiOperation* operation;
    std::size_t i;  // its message
  };
  struct Arrived {
    int peer;
    MPI_Message handle;
    std::size_t size;
  };

  // Takes the oldest of `items` that has this peer, if there is one.
  template <class Item>
  static std::optional<Item> take(std::vector<Item>& items, int peer) {
    const auto found = std::ranges::find(items, peer, &Item::peer);
    if (found == items.end()) return std::nullopt;
    const Item item = *found;
    items.erase(found);
    return item;
  }

  std::vector<Receive> waiting;    // no message has come for them
  std::vector<Arrived> unclaimed;  // no receive has asked for them
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<MpiWorld> world, Part place, const MpiOptions& options);
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
  void give_up(const std::string& reason, bool is_told) noexcept;
  void tell_peers(const std::string& reason) noexcept;
  void hear();
  int words_tag() const { return world_->last_tag - place_.number; }
  [[noreturn]] void die(const std::string& reason);
  void require_alive();

  std::shared_ptr<MpiWorld> world_;
  Part place_;  // ranks of the world; the number is the tag
  MpiOptions options_;
  bool is_dead_ = false;
  std::string reason_;
  std::unique_ptr<OperationPool<MpiOperation>> operations_;
  MpiInbox inbox_;
};

}  // namespace oktopk
