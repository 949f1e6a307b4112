// SPDX-License-Identifier: Apache-2.0
// Collectives that move bytes (collectives.h); small_collectives.cc has those by which ranks agree. Both allgathers run
// the rounds of the halving schedule backwards. A rank that has S blocks has those of ranks rank .. rank+S-1 (mod P),
// in this order, so that one contiguous message forwards them.
#include "oktopk/comm/collectives.h"

#include <algorithm>
#include <bit>

#include "oktopk/base/varint.h"
#include "oktopk/comm/flight.h"

namespace oktopk {
namespace {

int wrap(int rank, int P) { return rank < 0 ? rank + P : rank >= P ? rank - P : rank; }

// Notes the `count` blocks that lie in out.bytes[begin, end): those of ranks first, first+1, ...
// Sizes come from peers: each is checked before it is believed.
void open_blocks(Communicator& comm, std::span<const std::size_t> capacities, int peer, int first, int count,
                 std::size_t begin, std::size_t end, Gathered& out) {
  std::size_t at = begin;
  for (int b = 0; b < count; ++b) {
    const auto owner = static_cast<std::size_t>(wrap(first + b, comm.size()));
    std::uint64_t size = 0;
    auto rest = std::span<const std::byte>(out.bytes).subspan(at, end - at);
    if (!take_varint(rest, size))
      fail_world(comm, "allgatherv: message from rank ", peer, " ends before the block of rank ", owner);
    at = end - rest.size();
    if (size > capacities[owner] || size > end - at)
      fail_world(comm, "allgatherv: rank ", peer, " forwards ", size, " bytes of rank ", owner, ", whose capacity is ",
                 capacities[owner], " and of which ", end - at, " arrived");
    out.offsets[owner] = at;
    out.sizes[owner] = static_cast<std::size_t>(size);
    at += static_cast<std::size_t>(size);
  }
  if (at != end) fail_world(comm, "allgatherv: ", end - at, " bytes too many from rank ", peer);
}

}  // namespace

void note_failure(Communicator& comm, std::string_view text) {
  comm.flight()->note_error(text);
  comm.kill();
}

void expect_size(Communicator& comm, std::string_view operation, const Recv& recv, std::size_t size) {
  if (recv.size == size) return;
  fail_world(comm, operation, ": ", recv.size, " bytes from rank ", recv.peer, ", expected ", size);
}

int halving_rounds(int P) { return std::bit_width(static_cast<unsigned>(P - 1)); }

HalvingRound halving_round(int P, int i) {
  const auto blocks = [P](int times) { return ((P - 1) >> times) + 1; };
  return {blocks(i), blocks(i + 1)};
}

void barrier(Communicator& comm) {
  const FlightLabel label(comm, "barrier");
  const int P = comm.size();
  for (int distance = 1; distance < P; distance *= 2) {
    const Send send{neighbour(comm, distance), {}};
    Recv recv{neighbour(comm, -distance), {}, 0};
    comm.exchange({&send, 1}, {&recv, 1});
  }
}

void broadcast(Communicator& comm, int root, std::span<std::byte> data) {
  const std::size_t size = broadcast_up_to(comm, root, data, data.size());
  if (size != data.size()) fail_world(comm, "broadcast: ", size, " bytes from root ", root, ", expected ", data.size());
}

std::size_t broadcast_up_to(Communicator& comm, int root, std::span<std::byte> buffer, std::size_t size) {
  const FlightLabel label(comm, "broadcast");
  const int P = comm.size();
  require(root >= 0 && root < P, "broadcast: root ", root, " in a world of size ", P);
  const int place = neighbour(comm, -root);
  require(place != 0 || size <= buffer.size(), "broadcast: ", size, " bytes in a buffer of ", buffer.size());
  // Place q's parent is q without its lowest set bit; its children are q + every smaller power.
  int reach = 1;
  while (reach < P && (place & reach) == 0) reach *= 2;
  if (place != 0) {
    Recv recv{wrap(place - reach + root, P), buffer, 0};
    comm.exchange({}, {&recv, 1});
    size = recv.size;
  }
  // One after the other, the largest subtree first: at once they would share the link and delay the longest path.
  for (int step = reach / 2; step >= 1; step /= 2) {
    if (place + step >= P) continue;
    const Send send{wrap(place + step + root, P), buffer.first(size)};
    comm.exchange({&send, 1}, {});
  }
  return size;
}

void allgatherv(Communicator& comm, std::span<const std::byte> mine, std::span<const std::size_t> capacities,
                Gathered& out) {
  const FlightLabel label(comm, "allgatherv");
  const int P = comm.size();
  const int rank = comm.rank();
  require(capacities.size() == static_cast<std::size_t>(P), "allgatherv: ", capacities.size(),
          " capacities for a world of size ", P);
  const std::size_t limit = capacities[static_cast<std::size_t>(rank)];
  require(mine.size() <= limit, "allgatherv: block of ", mine.size(), " bytes, capacity ", limit);
  std::size_t total = 0;
  for (const std::size_t capacity : capacities) total += varint_bytes(capacity) + capacity;
  out.offsets.resize(capacities.size());
  out.sizes.resize(capacities.size());
  if (out.bytes.size() < total) {
    out.bytes.clear();  // growing must not copy the old content
    out.bytes.resize(total);
  }
  std::copy(mine.begin(), mine.end(), put_varint(mine.size(), out.bytes.data()));
  std::size_t used = varint_bytes(mine.size()) + mine.size();
  open_blocks(comm, capacities, rank, rank, 1, 0, used, out);

  for (int round = halving_rounds(P); round-- > 0;) {
    const auto [whole, held] = halving_round(P, round);
    const auto last = static_cast<std::size_t>(neighbour(comm, whole - held - 1));
    const auto bytes = std::span(out.bytes);
    const Send send{neighbour(comm, -held), bytes.first(out.offsets[last] + out.sizes[last])};
    Recv recv{neighbour(comm, held), bytes.subspan(used), 0};
    comm.exchange({&send, 1}, {&recv, 1});
    open_blocks(comm, capacities, recv.peer, neighbour(comm, held), whole - held, used, used + recv.size, out);
    used += recv.size;
  }
}

}  // namespace oktopk
