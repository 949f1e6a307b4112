// SPDX-License-Identifier: Apache-2.0
// Collectives that move bytes (collectives.h). Those that sum or copy regions of floats are in
// region_collectives.cc, those that reduce a few numbers in allreduce_small.cc.
// Circulant allgather: after the phases run backwards up to S blocks, a rank holds the blocks of
// ranks rank .. rank+S-1 (mod P), in this order, which is why one contiguous message forwards them.
#include "oktopk/comm/collectives.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "oktopk/base/hash.h"

namespace oktopk {
namespace {

int wrap(int rank, int P) { return rank < 0 ? rank + P : rank >= P ? rank - P : rank; }

void copy_bytes(std::byte* to, std::span<const std::byte> from) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

void prepare(Gathered& out, std::size_t P, std::size_t bytes) {
  out.offsets.resize(P);
  out.sizes.resize(P);
  if (out.bytes.size() < bytes) {
    out.bytes.clear();  // growing must not copy the old content
    out.bytes.resize(bytes);
  }
}

// Notes the `count` blocks that lie in out.bytes[begin, end): those of ranks first, first+1, ...
// Sizes come from peers: each is checked before it is believed.
void open_blocks(Communicator& comm, std::span<const std::size_t> capacities, int peer, int first, int count,
                 std::size_t begin, std::size_t end, Gathered& out) {
  std::size_t at = begin;
  for (int b = 0; b < count; ++b) {
    const auto owner = static_cast<std::size_t>(wrap(first + b, comm.size()));
    std::uint64_t size = 0;
    auto rest = std::span<const std::byte>(out.bytes).subspan(at, end - at);
    if (!take_varint(rest, size)) {
      fail_world(comm, "allgatherv: message from rank ", peer, " ends before the block of rank ", owner);
    }
    at = end - rest.size();
    if (size > capacities[owner] || size > end - at) {
      fail_world(comm, "allgatherv: rank ", peer, " forwards ", size, " bytes of rank ", owner, ", whose capacity is ",
                 capacities[owner], " and of which ", end - at, " arrived");
    }
    out.offsets[owner] = at;
    out.sizes[owner] = static_cast<std::size_t>(size);
    at += static_cast<std::size_t>(size);
  }
  if (at != end) fail_world(comm, "allgatherv: ", end - at, " bytes too many from rank ", peer);
}

}  // namespace

void expect_size(Communicator& comm, std::string_view operation, const Recv& recv, std::size_t size) {
  if (recv.size == size) return;
  fail_world(comm, operation, ": ", recv.size, " bytes from rank ", recv.peer, ", expected ", size);
}

std::span<const Phase> halving_phases(int P, Workspace& work) {
  const int held = work.halving.empty() ? 1 : work.halving.front().from_blocks;
  if (held != P) work.halving = circulant_phases(halving_skips(P));
  return work.halving;
}

void barrier(Communicator& comm) {
  const int P = comm.size();
  for (int distance = 1; distance < P; distance *= 2) {
    const Send send{neighbour(comm, distance), {}};
    Recv recv{neighbour(comm, -distance), {}, 0};
    comm.exchange({&send, 1}, {&recv, 1});
  }
}

void broadcast(Communicator& comm, int root, std::span<std::byte> data) {
  const std::size_t size = broadcast_up_to(comm, root, data, data.size());
  if (size != data.size()) {
    fail_world(comm, "broadcast: ", size, " bytes from root ", root, ", expected ", data.size());
  }
}

std::size_t broadcast_up_to(Communicator& comm, int root, std::span<std::byte> buffer, std::size_t size) {
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
  // One after the other, the largest subtree first: at once they would share the link, and the
  // longest path would wait for all of them.
  for (int step = reach / 2; step >= 1; step /= 2) {
    if (place + step >= P) continue;
    const Send send{wrap(place + step + root, P), buffer.first(size)};
    comm.exchange({&send, 1}, {});
  }
  return size;
}

void allgather(Communicator& comm, std::span<const std::byte> mine, std::span<std::byte> all, Workspace& work) {
  const auto P = static_cast<std::size_t>(comm.size());
  const std::size_t m = mine.size();
  require(all.size() == P * m, "allgather: result of ", all.size(), " bytes for ", P, " blocks of ", m);
  work.bytes.resize(P * m);
  copy_bytes(work.bytes.data(), mine);
  const auto phases = halving_phases(comm.size(), work);
  for (auto phase = phases.rbegin(); phase != phases.rend(); ++phase) {
    const Hop& hop = phase->hops.front();  // halving: one per phase
    const auto blocks = std::span(work.bytes);
    const std::size_t length = static_cast<std::size_t>(hop.count) * m;
    const Send send{neighbour(comm, -hop.shift), blocks.first(length)};
    Recv recv{neighbour(comm, hop.shift), blocks.subspan(static_cast<std::size_t>(hop.first) * m, length), 0};
    comm.exchange({&send, 1}, {&recv, 1});
    expect_size(comm, "allgather", recv, length);
  }
  const std::size_t mine_at = static_cast<std::size_t>(comm.rank()) * m;
  const auto blocks = std::span<const std::byte>(work.bytes);
  copy_bytes(all.data() + mine_at, blocks.first(P * m - mine_at));
  copy_bytes(all.data(), blocks.last(mine_at));
}

void allgather_checked(Communicator& comm, std::span<const std::byte> mine, std::span<std::byte> all, Workspace& work) {
  const auto P = static_cast<std::size_t>(comm.size());
  const std::size_t m = mine.size();
  const std::size_t block = m + kCheckBytes;
  work.checked.resize((P + 1) * block);
  const auto own = std::span(work.checked).first(block);
  const std::uint64_t check = hash_bytes(mine);
  copy_bytes(own.data(), mine);
  std::memcpy(own.data() + m, &check, kCheckBytes);
  const auto received = std::span(work.checked).subspan(block);
  allgather(comm, own, received, work);
  for (std::size_t r = 0; r < P; ++r) {
    const auto bytes = received.subspan(r * block, m);
    std::uint64_t expected = 0;
    std::memcpy(&expected, bytes.data() + m, kCheckBytes);
    if (hash_bytes(bytes) != expected) fail_world(comm, "allgather: rank ", r, "'s block is damaged");
    copy_bytes(all.data() + r * m, bytes);
  }
}

void allgatherv(Communicator& comm, std::span<const std::byte> mine, std::span<const std::size_t> capacities,
                Gathered& out, Workspace& work) {
  const int P = comm.size();
  const int rank = comm.rank();
  require(capacities.size() == static_cast<std::size_t>(P), "allgatherv: ", capacities.size(),
          " capacities for a world of size ", P);
  const std::size_t limit = capacities[static_cast<std::size_t>(rank)];
  require(mine.size() <= limit, "allgatherv: block of ", mine.size(), " bytes, capacity ", limit);
  std::size_t total = 0;
  for (const std::size_t capacity : capacities) total += prefix_bytes(capacity) + capacity;
  prepare(out, static_cast<std::size_t>(P), total);
  copy_bytes(put_varint(mine.size(), out.bytes.data()), mine);
  std::size_t used = prefix_bytes(mine.size()) + mine.size();
  open_blocks(comm, capacities, rank, rank, 1, 0, used, out);

  const auto phases = halving_phases(P, work);
  for (auto phase = phases.rbegin(); phase != phases.rend(); ++phase) {
    const Hop& hop = phase->hops.front();
    const int last = neighbour(comm, hop.count - 1);
    const std::size_t length = out.offsets[static_cast<std::size_t>(last)] + out.sizes[static_cast<std::size_t>(last)];
    const auto bytes = std::span(out.bytes);
    const Send send{neighbour(comm, -hop.shift), bytes.first(length)};
    Recv recv{neighbour(comm, hop.shift), bytes.subspan(used), 0};
    comm.exchange({&send, 1}, {&recv, 1});
    open_blocks(comm, capacities, recv.peer, neighbour(comm, hop.first), hop.count, used, used + recv.size, out);
    used += recv.size;
  }
}

void alltoall(Communicator& comm, std::span<const std::byte> outgoing, std::span<std::byte> incoming, Workspace& work) {
  const int P = comm.size();
  const std::size_t m = outgoing.size() / static_cast<std::size_t>(P);
  require(outgoing.size() == m * static_cast<std::size_t>(P) && incoming.size() == outgoing.size(),
          "alltoall: ", outgoing.size(), " bytes out and ", incoming.size(), " in for ", P, " equal blocks");
  work.sends.clear();
  work.recvs.clear();
  for (int shift = 1; shift < P; ++shift) {
    const int to = neighbour(comm, shift);
    const int from = neighbour(comm, -shift);
    work.sends.push_back({to, outgoing.subspan(static_cast<std::size_t>(to) * m, m)});
    work.recvs.push_back({from, incoming.subspan(static_cast<std::size_t>(from) * m, m), 0});
  }
  Pending pending = comm.start(work.sends, work.recvs);
  const std::size_t own = static_cast<std::size_t>(comm.rank()) * m;
  copy_bytes(incoming.data() + own, outgoing.subspan(own, m));
  pending.wait();
  for (const Recv& recv : work.recvs) expect_size(comm, "alltoall", recv, m);
}

void alltoallv(Communicator& comm, std::span<const std::span<const std::byte>> outgoing,
               std::span<const std::size_t> capacities, Gathered& incoming, Workspace& work) {
  const int P = comm.size();
  const auto ranks = static_cast<std::size_t>(P);
  require(outgoing.size() == ranks && capacities.size() == ranks, "alltoallv: ", outgoing.size(), " blocks and ",
          capacities.size(), " capacities for a world of size ", P);
  const auto self = static_cast<std::size_t>(comm.rank());
  require(outgoing[self].size() <= capacities[self], "alltoallv: own block of ", outgoing[self].size(),
          " bytes, capacity ", capacities[self]);
  prepare(incoming, ranks, std::accumulate(capacities.begin(), capacities.end(), std::size_t{0}));
  std::exclusive_scan(capacities.begin(), capacities.end(), incoming.offsets.begin(), std::size_t{0});
  work.sends.clear();
  work.recvs.clear();
  for (int shift = 1; shift < P; ++shift) {
    const int to = neighbour(comm, shift);
    const auto from = static_cast<std::size_t>(neighbour(comm, -shift));
    work.sends.push_back({to, outgoing[static_cast<std::size_t>(to)]});
    const auto place = std::span(incoming.bytes).subspan(incoming.offsets[from], capacities[from]);
    work.recvs.push_back({static_cast<int>(from), place, 0});
  }
  Pending pending = comm.start(work.sends, work.recvs);
  incoming.sizes[self] = outgoing[self].size();
  copy_bytes(incoming.bytes.data() + incoming.offsets[self], outgoing[self]);
  pending.wait();
  for (const Recv& recv : work.recvs) {
    incoming.sizes[static_cast<std::size_t>(recv.peer)] = recv.size;
  }
}

}  // namespace oktopk
