// SPDX-License-Identifier: Apache-2.0
// Transport "mpi" (transports.h): MPI is started and ended, communicators are made, split and ended.
// A dead communicator is never freed, nor an operation of which MPI still has a request: messages that have begun
// refer to them.
#include "oktopk/comm/transports.h"

#include <algorithm>
#include <array>
#include <climits>
#include <numeric>
#include <string>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/mpi/communicator.h"

namespace oktopk {
namespace {

int last_tag() {
  constexpr int kSmallestLast = 32767;  // that MPI allows
  const int* last = nullptr;
  int is_known = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&last), &is_known);
  return is_known != 0 ? *last : kSmallestLast;
}

// Collective over `original`. CommError when not all ranks come in time.
MPI_Comm duplicate(MPI_Comm original, const MpiOptions& options) {
  const MpiErrorsReturn errors_return(options.blocking);
  struct Duplication {
    MPI_Comm copy = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  auto started = std::make_unique<Duplication>();
  int code = options.blocking ? MPI_Comm_dup(original, &started->copy)
                              : MPI_Comm_idup(original, &started->copy, &started->request);
  const auto patience = std::max(options.timeout, Communicator::kDefaultTimeout);
  const bool is_done = options.blocking || poll(patience, [&] {
                         int done = 1;
                         if (code == MPI_SUCCESS) code = MPI_Test(&started->request, &done, MPI_STATUS_IGNORE);
                         return done != 0;
                       });
  if (!is_done) {
    static_cast<void>(started.release());  // MPI writes there when the last rank comes after all
    fail<CommError>("mpi: not all ranks came to make a communicator within ", in_seconds(patience), " s");
  }
  if (code != MPI_SUCCESS) fail<CommError>("mpi: duplicating: ", mpi_error_text(code));
  return started->copy;
}

}  // namespace

bool mpi_available() { return true; }

bool mpi_is_running() {
  int initialised = 0;
  int finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  return initialised != 0 && finalised == 0;
}

MpiSession::MpiSession(MpiThreads threads) {
  int initialised = 0;
  MPI_Initialized(&initialised);
  if (initialised != 0) return;
  const int needed = threads == MpiThreads::any ? MPI_THREAD_SERIALIZED : MPI_THREAD_SINGLE;
  int provided = MPI_THREAD_SINGLE;
  const int code = MPI_Init_thread(nullptr, nullptr, needed, &provided);
  if (code != MPI_SUCCESS) fail<CommError>("mpi: initialising: ", mpi_error_text(code));
  if (provided < needed) {
    MPI_Finalize();
    fail<CommError>("mpi: this MPI gives ", mpi_thread_level(provided), ", but ", mpi_thread_level(needed),
                    " is needed: use an MPI with thread support, or ",
                    "MpiSession(MpiThreads::first) and no BucketedReducer");
  }
  owns_ = true;
}

MpiSession::~MpiSession() {
  if (owns_ && mpi_is_running()) MPI_Finalize();
}

std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm comm, const MpiOptions& options) {
  require(mpi_is_running(), "mpi: not initialised, or already finalised (see MpiSession)");
  require(comm != MPI_COMM_NULL, "mpi: the communicator is MPI_COMM_NULL");
  require(options.timeout > Communicator::Duration::zero(), "mpi: the timeout must be positive");
  require(options.chunk_bytes >= 1 && options.chunk_bytes <= INT_MAX, "mpi: chunk_bytes ", options.chunk_bytes,
          ", must be from 1 to ", INT_MAX);
  MpiOptions limited = options;
  limited.timeout = std::min(options.timeout, kLongestTimeout);
  const auto world = std::make_shared<MpiWorld>(duplicate(comm, limited));
  world->last_tag = last_tag();
  Part place{.ranks = {}, .number = world->next_tag++};
  int size = 0;
  MPI_Comm_rank(world->comm, &place.rank);
  MPI_Comm_size(world->comm, &size);
  place.ranks.resize(static_cast<std::size_t>(size));
  std::iota(place.ranks.begin(), place.ranks.end(), 0);
  return std::make_unique<MpiCommunicator>(world, std::move(place), limited);
}

std::unique_ptr<Communicator> make_mpi_world(const MpiOptions& options) {
  return make_mpi_communicator(MPI_COMM_WORLD, options);
}

MpiCommunicator::MpiCommunicator(std::shared_ptr<MpiWorld> world, Part place, const MpiOptions& options)
    : world_(std::move(world)),
      place_(std::move(place)),
      options_(options),
      operations_(std::make_unique<OperationPool<MpiOperation>>()) {}

MpiCommunicator::~MpiCommunicator() {
  if (!mpi_is_running()) return;
  bool is_open = false;
  operations_->for_each_taken([&](std::uint64_t ticket) {
    give_up("destroyed", true);
    if (!withdraw((*operations_)[ticket])) is_open = true;
  });
  if (!inbox_.unclaimed.empty()) world_->is_kept = true;
  if (is_open) static_cast<void>(operations_.release());  // MPI's until the program ends
}

void MpiCommunicator::give_up(const std::string& reason, bool is_told) noexcept {
  if (!is_dead_) reason_ = reason;
  if (!is_dead_ && is_told) tell_peers(reason);
  is_dead_ = true;
  world_->is_kept = true;
}

void MpiCommunicator::die(const std::string& reason) {
  give_up(reason, false);
  fail<CommError>("mpi: rank ", rank(), ": ", reason);
}

void MpiCommunicator::require_alive() {
  if (is_dead_) die("the communicator is dead: " + reason_);
}

// The largest next tag of the ranks is new to each of them. UsageError on all ranks when no tag is left.
std::unique_ptr<Communicator> MpiCommunicator::split(int color, int key) {
  require_alive();
  Part part = agree_on_part(*this, color, key, world_->next_tag);
  const int last = world_->last_tag / 2;
  require(part.number <= last, "split: this is part ", part.number, " of one MPI communicator, and MPI has tags for ",
          last, "; make another communicator");
  world_->next_tag = part.number + 1;
  const std::vector<int> ranks = part.ranks;
  for (int& rank : part.ranks) rank = world_rank(rank);
  return as_part(std::make_unique<MpiCommunicator>(world_, std::move(part), options_), color, ranks);
}

// Compares host names: MPI_Comm_split_type, which knows the ranks that share memory, has no timeout.
int MpiCommunicator::host() {
  require_alive();
  using Name = std::array<char, MPI_MAX_PROCESSOR_NAME>;
  Name mine{};
  int length = 0;
  const int code = MPI_Get_processor_name(mine.data(), &length);
  if (code != MPI_SUCCESS) die("host: " + mpi_error_text(code));
  std::fill(mine.begin() + length, mine.end(), '\0');
  std::vector<Name> all(place_.ranks.size());
  Workspace work;
  allgather(*this, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), work);
  return static_cast<int>(std::find(all.begin(), all.end(), mine) - all.begin());
}

void MpiCommunicator::require_any_thread() const {
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  require(level >= MPI_THREAD_SERIALIZED, "mpi: MPI was initialised with ", mpi_thread_level(level),
          ", but an exchange on a thread of its own needs ", mpi_thread_level(MPI_THREAD_SERIALIZED),
          ": let MpiSession initialise MPI, or ask MPI_Init_thread for that level");
}

}  // namespace oktopk
