// SPDX-License-Identifier: Apache-2.0
// State that a communicator of the transport "mpi" shares with its parts: a duplicated MPI
// communicator and its tags. split() makes no MPI communicator, since MPI_Comm_split has no
// timeout: a part is a list of ranks, and a tag of its own keeps its messages apart.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "oktopk/comm/mpi.h"
#include "oktopk/comm/mpi_calls.h"

namespace oktopk {

// Where a communicator is in its world.
struct MpiPlace {
  std::vector<int> ranks;  // of the world, by rank of the communicator
  int rank = 0;            // this one
  int tag = 0;
};

// The message of a rank to the others in a split.
struct MpiWish {
  int color, key, next_tag;
};

class MpiWorld {
 public:
  // Takes the handle over.
  explicit MpiWorld(MPI_Comm comm);
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;
  ~MpiWorld();

  MPI_Comm comm() const { return comm_; }

  MpiPlace whole();
  // The part of this rank, whose place in the communicator that is split is given, and what all
  // ranks of that wish. UsageError on all of them when no tag is left.
  MpiPlace part(const MpiPlace& of, std::span<const MpiWish> wishes);
  // From here on tags are used by no part that this rank is in. The largest next tag of some ranks
  // is therefore new to each of them.
  int next_tag() const { return next_tag_; }

  // Some message may still refer to it.
  void never_free() noexcept { is_kept_ = true; }

 private:
  MPI_Comm comm_;
  int next_tag_ = 0;
  bool is_kept_ = false;
};

// Collective over `original`. CommError when not all ranks come within the timeout or
// kDefaultTimeout, whichever is longer.
std::shared_ptr<MpiWorld> duplicate(MPI_Comm original, const MpiOptions& options);

}  // namespace oktopk
