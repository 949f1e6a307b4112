// SPDX-License-Identifier: Apache-2.0
// Transport "mpi" (mpi.h): the life and the parts of a communicator.
// A dead communicator is never freed, nor an operation of which MPI still has a request: messages
// that have begun refer to them.
#include "oktopk/comm/mpi.h"

#include <algorithm>
#include <array>
#include <climits>
#include <string>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/mpi_communicator.h"

namespace oktopk {

MpiCommunicator::~MpiCommunicator() {
  if (!mpi_is_running()) return;
  bool is_open = false;
  operations_->for_each_taken([&](std::uint64_t ticket) {
    give_up("destroyed");
    if (!withdraw((*operations_)[ticket])) is_open = true;
  });
  if (inbox_.has_unclaimed()) world_->never_free();
  if (is_open) static_cast<void>(operations_.release());  // MPI's until the program ends
}

void MpiCommunicator::give_up(const std::string& reason) noexcept {
  if (!is_dead_) reason_ = reason;
  is_dead_ = true;
  world_->never_free();
}

void MpiCommunicator::die(const std::string& reason) {
  give_up(reason);
  fail<CommError>("mpi: rank ", rank(), ": ", reason);
}

void MpiCommunicator::require_alive() {
  if (is_dead_) die("the communicator is dead: " + reason_);
}

std::unique_ptr<Communicator> MpiCommunicator::split(int color, int key) {
  require(color >= 0, "split: color ", color, ", must not be negative");
  require_alive();
  const MpiWish mine{color, key, world_->next_tag()};
  std::vector<MpiWish> all(place_.ranks.size());
  allgather_checked(*this, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), work_);
  return std::make_unique<MpiCommunicator>(world_, world_->part(place_, all), options_);
}

// By name: MPI_Comm_split_type, which knows who shares memory, has no timeout.
int MpiCommunicator::host() {
  require_alive();
  using Name = std::array<char, MPI_MAX_PROCESSOR_NAME>;
  Name mine{};
  int length = 0;
  const int code = MPI_Get_processor_name(mine.data(), &length);
  if (code != MPI_SUCCESS) die("host: " + mpi_error_text(code));
  std::fill(mine.begin() + length, mine.end(), '\0');
  std::vector<Name> all(place_.ranks.size());
  allgather_checked(*this, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), work_);
  return static_cast<int>(std::find(all.begin(), all.end(), mine) - all.begin());
}

void MpiCommunicator::require_any_thread() const {
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  require(level >= MPI_THREAD_SERIALIZED, "mpi: MPI was initialised with ", mpi_thread_level(level),
          ", but an exchange on a thread of its own needs ", mpi_thread_level(MPI_THREAD_SERIALIZED),
          ": let MpiSession initialise MPI, or ask MPI_Init_thread for that level");
}

namespace {

std::unique_ptr<Communicator> make_communicator(MPI_Comm original, const MpiOptions& options) {
  require(original != MPI_COMM_NULL, "mpi: the communicator is MPI_COMM_NULL");
  require(options.timeout > Communicator::Duration::zero(), "mpi: the timeout must be positive");
  require(options.chunk_bytes >= 1 && options.chunk_bytes <= INT_MAX, "mpi: chunk_bytes ", options.chunk_bytes,
          ", must be from 1 to ", INT_MAX);
  MpiOptions limited = options;
  limited.timeout = std::min(options.timeout, kLongestTimeout);
  auto world = duplicate(original, limited);
  MpiPlace whole = world->whole();
  return std::make_unique<MpiCommunicator>(std::move(world), std::move(whole), limited);
}

}  // namespace

std::unique_ptr<Communicator> make_mpi_world(const MpiOptions& options) {
  require(mpi_is_running(), "mpi: not initialised, or already finalised (see MpiSession)");
  return make_communicator(MPI_COMM_WORLD, options);
}

std::unique_ptr<Communicator> make_mpi_communicator(int fortran_handle, const MpiOptions& options) {
  require(mpi_is_running(), "mpi: not initialised, or already finalised (see MpiSession)");
  return make_communicator(MPI_Comm_f2c(fortran_handle), options);
}

}  // namespace oktopk
