// SPDX-License-Identifier: Apache-2.0
// Collectives over the one verb, for every P >= 1 without a power-of-two case. All ranks call them
// in the same order with matching arguments. L = ceil(log2 P); m = bytes of one rank's block.
//
//                       messages sent per rank   bytes sent per rank       schedule
//   barrier             L                        0                         dissemination
//   broadcast           <= L                     <= L m                    binomial tree
//   allgather           L                        (P-1) m                   circulant, halving
//   allgatherv          L                        P-1 blocks with sizes     circulant, halving
//   alltoall(v)         P-1                      P-1 blocks                rotated destinations
//   reduce_scatter      message_count(skips)     >= (P-1) regions          circulant, any skip list
//   allgather_regions   message_count(skips)     (P-1) regions             the same, backwards
//   ring_*              P-1                      (P-1) regions             to the next rank only
//   tree_reduce         <= 1                     <= m                      binomial tree
//   gather_regions      <= 1                     <= 1 region               all to rank 0 at once
//   allreduce_small     L                        L (m + 8)                 circulant partial
//   results
//     sums of floats    L                        (P-1) (m + 8)             checked allgather, fold
//
// Received bytes are checked against what was expected; a mismatch leaves the communicator dead and
// throws CommError. Memory is reused through Workspace and Gathered: nothing is allocated once they
// are warm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "oktopk/base/bytes.h"
#include "oktopk/base/error.h"
#include "oktopk/base/half.h"
#include "oktopk/base/varint.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/comm/skips.h"

namespace oktopk {

// Scratch memory of collectives, for reuse between calls by one thread. Its content means nothing.
struct Workspace {
  Bytes bytes;
  Bytes gathered;
  Bytes checked;
  Uninitialised<float> floats;
  Uninitialised<Bf16> halves;
  std::vector<Send> sends;
  std::vector<Recv> recvs;
  std::vector<Phase> halving;  // circulant_phases(halving_skips(P)) of the last P
};

// One block of bytes per rank, as received.
struct Gathered {
  Bytes bytes;
  std::vector<std::size_t> offsets;
  std::vector<std::size_t> sizes;

  std::span<const std::byte> of(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return {bytes.data() + offsets[r], sizes[r]};
  }
};

// The rank `shift` places further, around the end. REQUIRES: -P <= shift <= P.
inline int neighbour(const Communicator& comm, int shift) {
  const int rank = comm.rank() + shift;
  return rank < 0 ? rank + comm.size() : rank >= comm.size() ? rank - comm.size() : rank;
}

// For received bytes that make no sense: leaves the communicator dead and throws CommError.
template <class... Parts>
[[noreturn]] void fail_world(Communicator& comm, const Parts&... parts) {
  comm.kill();
  fail<CommError>("rank ", comm.rank(), ": ", parts...);
}

// Throws as above unless exactly `size` bytes arrived.
void expect_size(Communicator& comm, std::string_view operation, const Recv& recv, std::size_t size);

// Returns on no rank before every rank has entered.
void barrier(Communicator& comm);

// Copies the root's bytes to every rank. REQUIRES: data has the same size on all ranks.
void broadcast(Communicator& comm, int root, std::span<std::byte> data);

// Copies the first `size` bytes of the root's buffer to every rank and returns their number; `size`
// counts on the root only. REQUIRES: every rank's buffer holds that many.
std::size_t broadcast_up_to(Communicator& comm, int root, std::span<std::byte> buffer, std::size_t size);

// all = the blocks of ranks 0..P-1. REQUIRES: mine.size() equal on all ranks, all.size() its
// P-fold.
void allgather(Communicator& comm, std::span<const std::byte> mine, std::span<std::byte> all, Workspace& work);

// The same for a few bytes, with a check of kCheckBytes per block: damage is a CommError.
inline constexpr std::size_t kCheckBytes = 8;
void allgather_checked(Communicator& comm, std::span<const std::byte> mine, std::span<std::byte> all, Workspace& work);

// Blocks of different sizes; rank r's has at most capacities[r] bytes (equal on all ranks). Peers
// forward each other's blocks unopened. The size of a block travels in front of it, in
// prefix_bytes().
inline std::size_t prefix_bytes(std::size_t block) { return varint_bytes(block); }
void allgatherv(Communicator& comm, std::span<const std::byte> mine, std::span<const std::size_t> capacities,
                Gathered& out, Workspace& work);

// Block q of `outgoing` goes to rank q; block p of `incoming` comes from rank p; P blocks of equal
// size each.
void alltoall(Communicator& comm, std::span<const std::byte> outgoing, std::span<std::byte> incoming, Workspace& work);

// outgoing[q] goes to rank q; what comes from rank p has at most capacities[p] bytes. The own block
// is copied like the others (pass an empty one to save the copy).
void alltoallv(Communicator& comm, std::span<const std::span<const std::byte>> outgoing,
               std::span<const std::size_t> capacities, Gathered& incoming, Workspace& work);

// Sums `data` over the ranks, region by region: region r is [cuts[r], cuts[r+1]), cuts has P+1
// non-decreasing entries from 0 to data.size(), equal on all ranks. Afterwards this rank's region
// holds the sum, in a summation order fixed by the phases; the other regions hold partial sums.
void reduce_scatter(Communicator& comm, std::span<float> data, std::span<const std::size_t> cuts,
                    std::span<const Phase> phases, Workspace& work);

// Copies every rank's region of `data` to every other rank, in place.
void allgather_regions(Communicator& comm, std::span<float> data, std::span<const std::size_t> cuts,
                       std::span<const Phase> phases, Workspace& work);

// The same two with neighbour traffic only: bandwidth-optimal, P-1 messages each.
void ring_reduce_scatter(Communicator& comm, std::span<float> data, std::span<const std::size_t> cuts, Workspace& work);
void ring_allgather(Communicator& comm, std::span<float> data, std::span<const std::size_t> cuts);

// How partial sums travel in 16 bits each. Given by the caller: this layer knows no codings.
struct HalfSums {
  // What travels of each sum; `sums` becomes what that lacks.
  void (*split)(std::span<float> sums, std::span<Bf16> halves);
  // Adds what arrived.
  void (*add)(std::span<const Bf16> halves, std::span<float> sums);
};

// The same two reduce-scatters on half the bytes. Every block is sent once, and what its halves
// lack stays in its place: afterwards this rank's region holds the sum of what arrived, the other
// regions what this rank did not send of them.
void reduce_scatter(Communicator& comm, std::span<float> data, std::span<const std::size_t> cuts,
                    std::span<const Phase> phases, Workspace& work, const HalfSums& coding);
void ring_reduce_scatter(Communicator& comm, std::span<float> data, std::span<const std::size_t> cuts, Workspace& work,
                         const HalfSums& coding);

// And the two allgathers, of halves.
void allgather_regions(Communicator& comm, std::span<Bf16> data, std::span<const std::size_t> cuts,
                       std::span<const Phase> phases, Workspace& work);
void ring_allgather(Communicator& comm, std::span<Bf16> data, std::span<const std::size_t> cuts);

// Sums `data` over the ranks; afterwards rank 0 has the sum, in an order fixed by the tree, and the
// others partial sums. Rank 0 receives ceil(log2 P) times all of it: for short vectors.
void tree_reduce(Communicator& comm, std::span<float> data, Workspace& work);

// Copies every rank's region of `data` to rank 0. After reduce_scatter() rank 0 has the sum: for
// long vectors, since it receives less than twice all of it, whatever P is.
void gather_regions(Communicator& comm, std::span<float> data, std::span<const std::size_t> cuts, Workspace& work);

enum class Reduction { sum, max, min };

// values[i] = reduction over the ranks, bitwise equal on all of them; every message carries a check
// of kCheckBytes. For short vectors. Integers wrap around; max and min of floats follow their total
// order (-NaN < -Inf < ... < -0 < +0 < ... < Inf < NaN). T: float, double, uint32, uint64, int64.
template <class T>
void allreduce_small(Communicator& comm, std::span<T> values, Reduction reduction, Workspace& work);

template <class T>
T allreduce_small(Communicator& comm, T value, Reduction reduction, Workspace& work) {
  allreduce_small(comm, std::span<T>(&value, 1), reduction, work);
  return value;
}

// The phases of circulant_phases(halving_skips(P)), kept in `work`.
std::span<const Phase> halving_phases(int P, Workspace& work);

}  // namespace oktopk
