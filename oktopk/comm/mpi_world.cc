// SPDX-License-Identifier: Apache-2.0
// Duplicating a user's communicator with a timeout, and freeing the duplicate (mpi_world.h).
#include "oktopk/comm/mpi_world.h"

#include <algorithm>
#include <numeric>

#include "oktopk/base/error.h"
#include "oktopk/comm/transport_support.h"

namespace oktopk {
namespace {

int last_tag() {
  constexpr int kSmallestLast = 32767;  // that MPI allows
  const int* last = nullptr;
  int is_known = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&last), &is_known);
  return is_known != 0 ? *last : kSmallestLast;
}

}  // namespace

MpiWorld::MpiWorld(MPI_Comm comm) : comm_(comm) { MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN); }

MpiWorld::~MpiWorld() {
  if (!is_kept_ && mpi_is_running()) MPI_Comm_free(&comm_);
}

MpiPlace MpiWorld::whole() {
  MpiPlace place;
  int size = 0;
  MPI_Comm_rank(comm_, &place.rank);
  MPI_Comm_size(comm_, &size);
  place.ranks.resize(static_cast<std::size_t>(size));
  std::iota(place.ranks.begin(), place.ranks.end(), 0);
  place.tag = next_tag_++;
  return place;
}

MpiPlace MpiWorld::part(const MpiPlace& of, std::span<const MpiWish> wishes) {
  const auto me = static_cast<std::size_t>(of.rank);
  MpiPlace place;
  std::vector<std::size_t> members;
  for (std::size_t r = 0; r < wishes.size(); ++r) {
    place.tag = std::max(place.tag, wishes[r].next_tag);
    if (wishes[r].color == wishes[me].color) members.push_back(r);
  }
  const int last = last_tag();
  require(place.tag <= last, "split: this is part ", place.tag, " of one MPI communicator, and MPI has tags for ", last,
          "; make another communicator");
  next_tag_ = place.tag + 1;
  std::stable_sort(members.begin(), members.end(),
                   [&](std::size_t a, std::size_t b) { return wishes[a].key < wishes[b].key; });
  for (const std::size_t r : members) {
    if (r == me) place.rank = static_cast<int>(place.ranks.size());
    place.ranks.push_back(of.ranks[r]);
  }
  return place;
}

std::shared_ptr<MpiWorld> duplicate(MPI_Comm original, const MpiOptions& options) {
  const MpiErrorsReturn errors_return(options.blocking);
  if (options.blocking) {
    MPI_Comm copy = MPI_COMM_NULL;
    const int code = MPI_Comm_dup(original, &copy);
    if (code != MPI_SUCCESS) fail<CommError>("mpi: duplicating: ", mpi_error_text(code));
    return std::make_shared<MpiWorld>(copy);
  }
  struct Duplication {
    MPI_Comm copy = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  auto started = std::make_unique<Duplication>();
  int code = MPI_Comm_idup(original, &started->copy, &started->request);
  const auto patience = std::max(options.timeout, Communicator::kDefaultTimeout);
  const bool is_done = poll(patience, [&] {
    int done = 1;
    if (code == MPI_SUCCESS) code = MPI_Test(&started->request, &done, MPI_STATUS_IGNORE);
    return done != 0;
  });
  if (!is_done) {
    static_cast<void>(started.release());  // MPI writes there when the last rank comes after all
    fail<CommError>("mpi: not all ranks came to make a communicator within ", in_seconds(patience), " s");
  }
  if (code != MPI_SUCCESS) fail<CommError>("mpi: duplicating: ", mpi_error_text(code));
  return std::make_shared<MpiWorld>(started->copy);
}

}  // namespace oktopk
