// SPDX-License-Identifier: Apache-2.0
// Sums of dense vectors over the ranks, in place. Reduce-scatter and allgather of regions together are the dense
// allreduce; a tree, or reduce-scatter and gather, bring the sum to rank 0 of a node. Region r is [cuts[r], cuts[r+1]);
// cuts has P + 1 non-decreasing entries from 0 to the vector's size, equal on all ranks.
//
// COST: halving ceil(log2 P) messages, ring P - 1 messages to the next rank only; both (P-1)/P of the vector.
#pragma once

#include <cstddef>
#include <span>

#include "oktopk/comm/collectives.h"

namespace oktopk {

enum class DenseRounds { halving, ring };

// How partial sums travel.
struct SumCoding {
  std::size_t width;  // bytes of a value on the wire
  bool is_plain;      // the wire has the floats themselves
  // Writes what travels of each sum; subtracts it from `sums` unless it is plain.
  void (*split)(std::span<float> sums, std::span<std::byte> wire);
  // Adds what arrived.
  void (*add)(std::span<const std::byte> wire, std::span<float> sums);
};
SumCoding plain_sums();

// Sums `data` over the ranks. Afterwards this rank's region holds the sum, in an order fixed by the rounds. The other
// regions hold partial sums; if the coding is not plain, what it cut off when this rank sent them.
void dense_reduce_scatter(Communicator& comm, std::span<float> data, std::span<const std::size_t> cuts,
                          DenseRounds rounds, Workspace& work, const SumCoding& coding = plain_sums());

// Copies every rank's region of `data` to every other rank, in place. A value has `width` bytes.
void dense_allgather(Communicator& comm, std::span<std::byte> data, std::size_t width,
                     std::span<const std::size_t> cuts, DenseRounds rounds, Workspace& work);

// Sums `data` over the ranks; afterwards rank 0 has the sum, in an order fixed by the tree, and the others partial
// sums. Rank 0 receives ceil(log2 P) times the whole vector: for short vectors.
void tree_reduce(Communicator& comm, std::span<float> data, Workspace& work);

// Copies every rank's region of `data` to rank 0. After dense_reduce_scatter() rank 0 has the sum. Rank 0 receives
// less than twice the whole vector for any P: for long vectors.
void gather_regions(Communicator& comm, std::span<float> data, std::span<const std::size_t> cuts, Workspace& work);

}  // namespace oktopk
