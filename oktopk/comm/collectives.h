// SPDX-License-Identifier: Apache-2.0
// Collectives that move bytes, and those by which ranks agree on a few numbers. They work for every P >= 1. All ranks
// call them in the same order with matching arguments. L = ceil(log2 P); m = bytes of one rank's block.
//
//                       messages sent per rank   bytes sent per rank       schedule
//   barrier             L                        0                         dissemination
//   broadcast           <= L                     <= L m                    binomial tree
//   allgather           L                        (P-1) (m + 8)             circulant, halving
//   allgatherv          L                        P-1 blocks with sizes     circulant, halving
//   alltoall            P-1                      (P-1) (m + 8)             all at once
//   allreduce_small     L                        L (m + 8)                 circulant partial results
//     sums of floats    L                        (P-1) (m + 8)             allgather, then a local sum
//
// Received bytes are checked against what was expected; a mismatch leaves the communicator dead and throws CommError.
// Workspace and Gathered keep memory between calls: nothing is allocated once they are warm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "oktopk/base/bytes.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/communicator.h"

namespace oktopk {

class Trace;

// Scratch memory of collectives, for reuse between calls by one thread.
struct Workspace {
  Bytes bytes;
  Bytes gathered;
  Bytes checked;
  std::vector<Send> sends;
  std::vector<Recv> recvs;
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

// Leaves the communicator dead, with `text` as the cause in its flight recorder.
void note_failure(Communicator& comm, std::string_view text);

// For received bytes that make no sense: leaves the communicator dead and throws CommError.
template <class... Parts>
[[noreturn]] void fail_world(Communicator& comm, const Parts&... parts) {
  const std::string text = text_of("rank ", comm.rank(), ": ", parts...);
  note_failure(comm, text);
  throw CommError(text);
}

// Calls fail_world() unless exactly `size` bytes arrived.
void expect_size(Communicator& comm, std::string_view operation, const Recv& recv, std::size_t size);

// Returns on no rank before every rank has entered.
void barrier(Communicator& comm);

// Copies the root's bytes to every rank. REQUIRES: data has the same size on all ranks.
void broadcast(Communicator& comm, int root, std::span<std::byte> data);
inline void broadcast(Communicator& comm, int root, std::span<float> data) {
  broadcast(comm, root, std::as_writable_bytes(data));
}

// Copies the first `size` bytes of the root's buffer to every rank and returns their number; only the root's `size`
// counts. REQUIRES: every rank's buffer holds that many.
std::size_t broadcast_up_to(Communicator& comm, int root, std::span<std::byte> buffer, std::size_t size);

// all = the blocks of ranks 0..P-1. A check of kCheckBytes travels with each block: damage is a
// CommError. REQUIRES: mine.size() equal on all ranks, all.size() == P * mine.size().
inline constexpr std::size_t kCheckBytes = 8;
void allgather(Communicator& comm, std::span<const std::byte> mine, std::span<std::byte> all, Workspace& work);

// Block q of `mine` goes to rank q; all = the blocks that ranks 0..P-1 have for this one. With checks as in allgather.
// REQUIRES: mine.size() == all.size(), a multiple of P, equal on all ranks.
void alltoall(Communicator& comm, std::span<const std::byte> mine, std::span<std::byte> all, Workspace& work);

// Gathers blocks of different sizes; rank r's has at most capacities[r] bytes (equal on all ranks). Peers forward
// each other's blocks unopened. A varint before each block is its size.
void allgatherv(Communicator& comm, std::span<const std::byte> mine, std::span<const std::size_t> capacities,
                Gathered& out);

enum class Reduction { sum, max, min };

// values[i] = reduction over the ranks, bitwise equal on all of them; every message carries a check of kCheckBytes.
// For short vectors. Integers wrap around; max and min of floats follow their total order
// (-NaN < -Inf < ... < -0 < +0 < ... < Inf < NaN). T: float, double, uint32, uint64, int64.
template <class T>
void allreduce_small(Communicator& comm, std::span<T> values, Reduction reduction, Workspace& work);

template <class T>
T allreduce_small(Communicator& comm, T value, Reduction reduction, Workspace& work) {
  allreduce_small(comm, std::span<T>(&value, 1), reduction, work);
  return value;
}

// Throws the same UsageError on every rank unless all ranks have equal settings. `mine` lists them as
// "n = 8, codec coo32, ..."; the error starts with `who` and names the first item that differs, and the ranks.
// COST: an allgather of kAgreementBytes per rank; the texts travel only when they differ.
inline constexpr std::size_t kAgreementBytes = 2 * sizeof(std::uint64_t) + kCheckBytes;
void require_equal(Communicator& comm, std::string_view who, std::string_view mine, Workspace& work);

// The weights, or whatever must be equal on all ranks, are not. The communicator lives.
struct Divergence : UsageError {
  using UsageError::UsageError;
};

// Collective: throws the same Divergence on every rank unless `mine` holds the same bytes on all. It names the ranks
// that differ from the majority, or all groups where there is none, with `what` and `step`.
// COST: a pass over `mine`, and an allgather of kAgreementBytes per rank.
void check_equal(Communicator& comm, std::string_view what, std::span<const std::byte> mine, std::uint64_t step,
                 Workspace& work);

// The same for a hash of them, by fast_hash(). COST: an allgather of kAgreementBytes per rank.
void compare_hashes(Communicator& comm, std::string_view what, std::uint64_t mine, std::uint64_t step, Workspace& work);
// About as fast as memory is read. A difference in one word changes the hash for certain.
std::uint64_t fast_hash(std::span<const std::byte> bytes, std::uint64_t seed = 0);

// The first items that differ in two such lists. Long items are cut around the difference.
std::pair<std::string_view, std::string_view> first_difference(std::string_view a, std::string_view b);

// Round i of the halving schedule goes from ceil(P/2^i) blocks to half of them (a reduce-scatter), or back (an
// allgather). It is circulant_phases(halving_skips(P)) of skips.h without memory.
struct HalvingRound {
  int from, to;
};
int halving_rounds(int P);
HalvingRound halving_round(int P, int i);

// Collective, for ranks that have a trace each: afterwards rank 0's holds the events of all. Ranks of one host share
// a clock; the clocks of other hosts are set by a barrier, right to within about the time of a message.
void gather_trace(Communicator& comm, Trace& trace);

}  // namespace oktopk
