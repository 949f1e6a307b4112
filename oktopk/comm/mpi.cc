// SPDX-License-Identifier: Apache-2.0
// Transport "mpi" (mpi.h): Isend/Irecv on a duplicated communicator with one tag, so that MPI's own
// ordering rule is ours.
// Waits poll: Test, then the core is given away, after a while for longer. Requests are pooled:
// no allocation of ours per message once warm.
// A dead communicator is never freed: messages that could not be cancelled may still refer to it.
#include "oktopk/comm/mpi.h"

#include <algorithm>
#include <climits>
#include <string>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/mpi_calls.h"
#include "oktopk/comm/transport_support.h"

namespace oktopk {
namespace {

using Duration = Communicator::Duration;

constexpr int kTag = 0;
// How long a withdrawn receive may take to end when its message was already on the way.
constexpr Duration kLongestGrace = std::chrono::seconds(1);

class MpiCommunicator final : public Communicator {
 public:
  // Takes the handle over.
  MpiCommunicator(MPI_Comm comm, const MpiOptions& options) : comm_(comm), options_(options) {
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }
  ~MpiCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view transport() const override { return "mpi"; }
  Duration timeout() const override { return options_.timeout; }

  std::unique_ptr<Communicator> split(int color, int key) override;
  int host() override;
  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override;
  void finish(std::uint64_t ticket) override;
  void abandon(std::uint64_t ticket) noexcept override;

 private:
  // Receives first, then sends, in the order in which start() was given them.
  struct Operation {
    std::vector<MPI_Request> requests;
    std::vector<int> peers;
    std::span<Recv> recvs;
  };

  void post(Operation& operation, std::span<const Send> sends);
  bool fits_itself(std::size_t bytes, bool is_recv);
  bool test(Operation& operation, std::size_t i);
  void note_size(Recv& recv, MPI_Status& status) const;
  std::string describe(const Operation& operation, std::size_t request) const;
  std::string silent_peers(Operation& operation);
  void withdraw(Operation& operation) noexcept;
  [[noreturn]] void die(const std::string& reason);

  MPI_Comm comm_;
  MpiOptions options_;
  int rank_ = 0;
  int size_ = 0;
  bool is_dead_ = false;
  std::string reason_;
  OperationPool<Operation> operations_;
  struct Half {
    std::size_t bytes;
    bool is_recv;
  };
  std::vector<Half> to_itself_;  // not matched yet
};

MpiCommunicator::~MpiCommunicator() {
  if (!mpi_is_running()) return;
  operations_.for_each_taken([&](std::uint64_t ticket) { MpiCommunicator::abandon(ticket); });
  if (!is_dead_) MPI_Comm_free(&comm_);
}

void MpiCommunicator::die(const std::string& reason) {
  if (!is_dead_) reason_ = reason;
  is_dead_ = true;
  fail<CommError>("mpi: rank ", rank_, ": ", reason);
}

std::string MpiCommunicator::describe(const Operation& operation, std::size_t request) const {
  const bool is_recv = request < operation.recvs.size();
  std::string what = is_recv ? "receive from rank " : "send to rank ";
  what += std::to_string(operation.peers[request]);
  if (is_recv) {
    what += ", capacity " + std::to_string(operation.recvs[request].buffer.size()) + " bytes";
  }
  return what;
}

std::uint64_t MpiCommunicator::begin(std::span<const Send> sends, std::span<Recv> recvs) {
  if (is_dead_) die("the communicator is dead: " + reason_);
  const std::uint64_t ticket = operations_.take();
  Operation& operation = operations_[ticket];
  operation.recvs = recvs;
  operation.requests.assign(recvs.size() + sends.size(), MPI_REQUEST_NULL);
  operation.peers.clear();
  for (const Recv& recv : recvs) operation.peers.push_back(recv.peer);
  for (const Send& send : sends) operation.peers.push_back(send.peer);
  post(operation, sends);
  return ticket;
}

void MpiCommunicator::post(Operation& operation, std::span<const Send> sends) {
  for (std::size_t i = 0; i < operation.requests.size(); ++i) {
    const std::size_t s = i - operation.recvs.size();  // meaningful for sends
    const bool is_recv = i < operation.recvs.size();
    const std::size_t bytes = is_recv ? operation.recvs[i].buffer.size() : sends[s].bytes.size();
    const MpiShape shape(bytes, options_.chunk_bytes);
    MPI_Request& request = operation.requests[i];
    const int peer = operation.peers[i];
    if (peer == rank_ && !fits_itself(bytes, is_recv)) {
      withdraw(operation);
      die(describe(operation, i) + ": the message to itself is larger");
    }
    const int code = is_recv ? MPI_Irecv(operation.recvs[i].buffer.data(), shape.count(),
                                         shape.type(), peer, kTag, comm_, &request)
                             : MPI_Isend(sends[s].bytes.data(), shape.count(), shape.type(), peer,
                                         kTag, comm_, &request);
    if (code == MPI_SUCCESS) continue;
    request = MPI_REQUEST_NULL;
    withdraw(operation);
    die(describe(operation, i) + ": " + mpi_error_text(code));
  }
}

// Open MPI 4.1 truncates a message to itself without an error: the n-th send is compared with the
// n-th receive here. False where it does not fit.
bool MpiCommunicator::fits_itself(std::size_t bytes, bool is_recv) {
  if (to_itself_.empty() || to_itself_.front().is_recv == is_recv) {
    to_itself_.push_back({bytes, is_recv});
    return true;
  }
  const std::size_t other = to_itself_.front().bytes;
  to_itself_.erase(to_itself_.begin());
  return is_recv ? other <= bytes : bytes <= other;
}

// True when request i has completed, or is none any more; notes what it received. Blocking: waits
// until it has.
bool MpiCommunicator::test(Operation& operation, std::size_t i) {
  if (operation.requests[i] == MPI_REQUEST_NULL) return true;
  MPI_Request& request = operation.requests[i];
  int is_done = 1;
  MPI_Status status;
  const int code =
      options_.blocking ? MPI_Wait(&request, &status) : MPI_Test(&request, &is_done, &status);
  if (code != MPI_SUCCESS) {
    withdraw(operation);
    die(describe(operation, i) + ": " + mpi_error_text(code));
  }
  if (is_done == 0) return false;
  if (i < operation.recvs.size()) note_size(operation.recvs[i], status);
  return true;
}

void MpiCommunicator::note_size(Recv& recv, MPI_Status& status) const {
  // A simulator need not know MPI_Get_elements_x, without which derived types cannot do.
  if (options_.blocking && recv.buffer.size() <= options_.chunk_bytes) {
    int size = 0;
    MPI_Get_count(&status, MPI_BYTE, &size);
    recv.size = static_cast<std::size_t>(size);
    return;
  }
  MPI_Count size = 0;
  MPI_Get_elements_x(&status, MPI_BYTE, &size);
  recv.size = static_cast<std::size_t>(size);
}

void MpiCommunicator::finish(std::uint64_t ticket) {
  Operation& operation = operations_[ticket];
  if (is_dead_) {
    withdraw(operation);
    die("the communicator is dead: " + reason_);
  }
  const MpiErrorsReturn errors_return(options_.blocking);
  // Each test lets all of MPI progress: asking for one request after the other is enough.
  std::size_t done = 0;
  const bool is_complete = poll(options_.timeout, [&] {
    while (done < operation.requests.size() && test(operation, done)) ++done;
    return done == operation.requests.size();
  });
  if (!is_complete) {
    const std::string peers = silent_peers(operation);
    withdraw(operation);
    std::ostringstream reason;
    reason << "no answer within " << in_seconds(options_.timeout) << " s from " << peers;
    die(reason.str());
  }
  operations_.give_back(ticket);
}

std::string MpiCommunicator::silent_peers(Operation& operation) {
  std::vector<int> peers;
  for (std::size_t i = 0; i < operation.requests.size(); ++i) {
    if (!test(operation, i)) peers.push_back(operation.peers[i]);
  }
  return list_ranks(std::move(peers));
}

// Ends the receives, so that nothing is written to their buffers any more. MPI cannot take back a
// send: its request is given up, and the message may still be read by the peer.
void MpiCommunicator::withdraw(Operation& operation) noexcept {
  const MpiErrorsReturn errors_return(options_.blocking);
  auto& requests = operation.requests;
  const std::size_t recvs = std::min(operation.recvs.size(), requests.size());
  for (std::size_t i = 0; i < recvs; ++i) {
    if (requests[i] != MPI_REQUEST_NULL) MPI_Cancel(&requests[i]);
  }
  poll(std::min(options_.timeout, kLongestGrace), [&] {
    std::size_t open = 0;
    for (std::size_t i = 0; i < recvs; ++i) {
      int done = 1;
      if (requests[i] != MPI_REQUEST_NULL) MPI_Test(&requests[i], &done, MPI_STATUS_IGNORE);
      open += done == 0 ? 1 : 0;
    }
    return open == 0;
  });
  for (MPI_Request& request : requests) {
    if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
  }
}

void MpiCommunicator::abandon(std::uint64_t ticket) noexcept {
  Operation& operation = operations_[ticket];
  if (mpi_is_running()) withdraw(operation);
  if (!is_dead_) reason_ = "an exchange was abandoned";
  is_dead_ = true;
}

std::unique_ptr<Communicator> MpiCommunicator::split(int color, int key) {
  require(color >= 0, "split: color ", color, ", must not be negative");
  // MPI_Comm_split has no timeout; the barrier has one, and only a world that is alive passes it.
  barrier(*this);
  MPI_Comm part = MPI_COMM_NULL;
  const int code = MPI_Comm_split(comm_, color, key, &part);
  if (code != MPI_SUCCESS) die("split: " + mpi_error_text(code));
  return std::make_unique<MpiCommunicator>(part, options_);
}

int MpiCommunicator::host() {
  if (is_dead_) die("the communicator is dead: " + reason_);
  barrier(*this);  // as in split()
  int lowest = 0;
  const int code = mpi_lowest_on_host(comm_, rank_, lowest);
  if (code != MPI_SUCCESS) die("host: " + mpi_error_text(code));
  return lowest;
}

std::unique_ptr<Communicator> duplicate(MPI_Comm original, const MpiOptions& options) {
  require(original != MPI_COMM_NULL, "mpi: the communicator is MPI_COMM_NULL");
  require(options.timeout > Duration::zero(), "mpi: the timeout must be positive");
  require(options.chunk_bytes >= 1 && options.chunk_bytes <= INT_MAX, "mpi: chunk_bytes ",
          options.chunk_bytes, ", must be from 1 to ", INT_MAX);
  MpiOptions limited = options;
  limited.timeout = std::min(options.timeout, kLongestTimeout);
  const MpiErrorsReturn errors_return(options.blocking);
  MPI_Comm copy = MPI_COMM_NULL;
  if (options.blocking) {
    const int code = MPI_Comm_dup(original, &copy);
    if (code != MPI_SUCCESS) fail<CommError>("mpi: duplicating: ", mpi_error_text(code));
    return std::make_unique<MpiCommunicator>(copy, limited);
  }
  MPI_Request request = MPI_REQUEST_NULL;
  int code = MPI_Comm_idup(original, &copy, &request);
  const Duration patience = std::max(limited.timeout, Communicator::kDefaultTimeout);
  const bool is_done = poll(patience, [&] {
    int done = 1;
    if (code == MPI_SUCCESS) code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    return done != 0;
  });
  if (!is_done) fail<CommError>("mpi: not all ranks came to make a communicator");
  if (code != MPI_SUCCESS) fail<CommError>("mpi: duplicating: ", mpi_error_text(code));
  return std::make_unique<MpiCommunicator>(copy, limited);
}

}  // namespace

std::unique_ptr<Communicator> make_mpi_world(const MpiOptions& options) {
  require(mpi_is_running(), "mpi: not initialised, or already finalised (see MpiSession)");
  return duplicate(MPI_COMM_WORLD, options);
}

std::unique_ptr<Communicator> make_mpi_communicator(int fortran_handle, const MpiOptions& options) {
  require(mpi_is_running(), "mpi: not initialised, or already finalised (see MpiSession)");
  return duplicate(MPI_Comm_f2c(fortran_handle), options);
}

}  // namespace oktopk
