// SPDX-License-Identifier: Apache-2.0
// Reduce-scatter and allgather of the regions of a float vector (collectives.h), in place: together
// the dense allreduce. Block d of rank i is region (i + d) mod P, so consecutive blocks are one
// contiguous range, or two where they go around the end of the vector; only the latter are packed.
#include <algorithm>
#include <cstring>

#include "oktopk/comm/collectives.h"

namespace oktopk {
namespace {

// Regions first, first+1, ..., first+count-1 (mod P) of a vector: at most two pieces.
struct Pieces {
  std::span<float> head;
  std::span<float> tail;

  std::size_t size() const { return head.size() + tail.size(); }
};

Pieces pieces_of(std::span<float> data, std::span<const std::size_t> cuts, int first, int count) {
  const auto P = cuts.size() - 1;
  const auto begin = static_cast<std::size_t>(first);
  const std::size_t end = begin + static_cast<std::size_t>(count);
  const std::size_t cut = std::min(end, P);
  Pieces pieces{data.subspan(cuts[begin], cuts[cut] - cuts[begin]), {}};
  if (end > P) pieces.tail = data.first(cuts[end - P]);
  return pieces;
}

void copy(std::span<const float> from, std::span<float> to) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size_bytes());
}

void add(std::span<const float> from, std::span<float> to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

// Hands out consecutive parts of the scratch memory as floats.
class Scratch {
 public:
  Scratch(Workspace& work, std::size_t floats) {
    if (work.floats.size() < floats) {
      work.floats.clear();  // growing must not copy the old content
      work.floats.resize(floats);
    }
    rest_ = work.floats;
  }
  std::span<float> take(std::size_t floats) {
    const std::span<float> part = rest_.first(floats);
    rest_ = rest_.subspan(floats);
    return part;
  }

 private:
  std::span<float> rest_;
};

void check(const Communicator& comm, std::span<const float> data,
           std::span<const std::size_t> cuts) {
  require(cuts.size() == static_cast<std::size_t>(comm.size()) + 1, "regions: ", cuts.size(),
          " cuts for a world of size ", comm.size(), ", must be one more");
  require(
      cuts.front() == 0 && cuts.back() == data.size() && std::is_sorted(cuts.begin(), cuts.end()),
      "regions: cuts must rise from 0 to the vector's size ", data.size());
}

void check(const Communicator& comm, std::span<const Phase> phases) {
  const int from = phases.empty() ? 1 : phases.front().from_blocks;
  require(from == comm.size(), "regions: phases for a world of size ", from, ", this one has ",
          comm.size());
}

// The bytes to send for `pieces`: themselves, or a packed copy where they are two.
std::span<const std::byte> packed(const Pieces& pieces, Scratch& scratch) {
  if (pieces.tail.empty()) return std::as_bytes(pieces.head);
  const std::span<float> copied = scratch.take(pieces.size());
  copy(pieces.head, copied);
  copy(pieces.tail, copied.subspan(pieces.head.size()));
  return std::as_bytes(copied);
}

}  // namespace

void reduce_scatter(Communicator& comm, std::span<float> data, std::span<const std::size_t> cuts,
                    std::span<const Phase> phases, Workspace& work) {
  check(comm, data, cuts);
  check(comm, phases);
  for (const Phase& phase : phases) {
    std::size_t needed = 0;
    for (const Hop& hop : phase.hops) {
      needed += pieces_of(data, cuts, neighbour(comm, hop.first), hop.count).size();
      needed += pieces_of(data, cuts, comm.rank(), hop.count).size();
    }
    Scratch scratch(work, needed);
    work.sends.clear();
    work.recvs.clear();
    for (const Hop& hop : phase.hops) {
      const Pieces out = pieces_of(data, cuts, neighbour(comm, hop.first), hop.count);
      const Pieces in = pieces_of(data, cuts, comm.rank(), hop.count);
      work.sends.push_back({neighbour(comm, hop.shift), packed(out, scratch)});
      const auto place = std::as_writable_bytes(scratch.take(in.size()));
      work.recvs.push_back({neighbour(comm, -hop.shift), place, 0});
    }
    comm.exchange(work.sends, work.recvs);
    for (std::size_t j = 0; j < phase.hops.size(); ++j) {
      const Pieces in = pieces_of(data, cuts, comm.rank(), phase.hops[j].count);
      expect_size(comm, "reduce_scatter", work.recvs[j], in.size() * sizeof(float));
      const auto* arrived = reinterpret_cast<const float*>(work.recvs[j].buffer.data());
      add({arrived, in.head.size()}, in.head);
      add({arrived + in.head.size(), in.tail.size()}, in.tail);
    }
  }
}

void allgather_regions(Communicator& comm, std::span<float> data, std::span<const std::size_t> cuts,
                       std::span<const Phase> phases, Workspace& work) {
  check(comm, data, cuts);
  check(comm, phases);
  for (auto phase = phases.rbegin(); phase != phases.rend(); ++phase) {
    std::size_t needed = 0;
    for (const Hop& hop : phase->hops) {
      needed += pieces_of(data, cuts, comm.rank(), hop.count).size();
      needed += pieces_of(data, cuts, neighbour(comm, hop.first), hop.count).size();
    }
    Scratch scratch(work, needed);
    work.sends.clear();
    work.recvs.clear();
    for (const Hop& hop : phase->hops) {
      const Pieces out = pieces_of(data, cuts, comm.rank(), hop.count);
      const Pieces in = pieces_of(data, cuts, neighbour(comm, hop.first), hop.count);
      work.sends.push_back({neighbour(comm, -hop.shift), packed(out, scratch)});
      const auto place = in.tail.empty() ? in.head : scratch.take(in.size());
      work.recvs.push_back({neighbour(comm, hop.shift), std::as_writable_bytes(place), 0});
    }
    comm.exchange(work.sends, work.recvs);
    for (std::size_t j = 0; j < phase->hops.size(); ++j) {
      const Hop& hop = phase->hops[j];
      const Pieces in = pieces_of(data, cuts, neighbour(comm, hop.first), hop.count);
      expect_size(comm, "allgather_regions", work.recvs[j], in.size() * sizeof(float));
      if (in.tail.empty()) continue;
      const auto* arrived = reinterpret_cast<const float*>(work.recvs[j].buffer.data());
      copy({arrived, in.head.size()}, in.head);
      copy({arrived + in.head.size(), in.tail.size()}, in.tail);
    }
  }
}

void ring_reduce_scatter(Communicator& comm, std::span<float> data,
                         std::span<const std::size_t> cuts, Workspace& work) {
  check(comm, data, cuts);
  const int P = comm.size();
  std::size_t widest = 0;
  for (int r = 0; r < P; ++r) widest = std::max(widest, pieces_of(data, cuts, r, 1).size());
  Scratch scratch(work, widest);
  const std::span<float> arrived = scratch.take(widest);
  // Region r starts its way at rank r+1, collects at every rank, and ends at rank r.
  for (int step = 1; step < P; ++step) {
    const auto out = pieces_of(data, cuts, neighbour(comm, -step), 1).head;
    const auto in = pieces_of(data, cuts, neighbour(comm, -step - 1), 1);
    const Send send{neighbour(comm, 1), std::as_bytes(out)};
    Recv recv{neighbour(comm, -1), std::as_writable_bytes(arrived.first(in.size())), 0};
    comm.exchange({&send, 1}, {&recv, 1});
    expect_size(comm, "ring_reduce_scatter", recv, in.size() * sizeof(float));
    add(arrived.first(in.size()), in.head);
  }
}

void ring_allgather(Communicator& comm, std::span<float> data, std::span<const std::size_t> cuts) {
  check(comm, data, cuts);
  for (int step = 0; step + 1 < comm.size(); ++step) {
    const auto out = pieces_of(data, cuts, neighbour(comm, -step), 1).head;
    const auto in = pieces_of(data, cuts, neighbour(comm, -step - 1), 1).head;
    const Send send{neighbour(comm, 1), std::as_bytes(out)};
    Recv recv{neighbour(comm, -1), std::as_writable_bytes(in), 0};
    comm.exchange({&send, 1}, {&recv, 1});
    expect_size(comm, "ring_allgather", recv, in.size_bytes());
  }
}

// Rank q collects from q + 1, q + 2, q + 4, ... and sends to q without its lowest set bit.
void tree_reduce(Communicator& comm, std::span<float> data, Workspace& work) {
  const int P = comm.size();
  const int rank = comm.rank();
  Scratch scratch(work, data.size());
  const std::span<float> arrived = scratch.take(data.size());
  for (int step = 1; step < P; step *= 2) {
    if ((rank & step) != 0) {
      const Send send{rank - step, std::as_bytes(data)};
      comm.exchange({&send, 1}, {});
      return;
    }
    if (rank + step >= P) continue;
    Recv recv{rank + step, std::as_writable_bytes(arrived), 0};
    comm.exchange({}, {&recv, 1});
    expect_size(comm, "tree_reduce", recv, data.size_bytes());
    add(arrived, data);
  }
}

void gather_regions(Communicator& comm, std::span<float> data, std::span<const std::size_t> cuts,
                    Workspace& work) {
  check(comm, data, cuts);
  if (comm.rank() != 0) {
    const Send send{0, std::as_bytes(pieces_of(data, cuts, comm.rank(), 1).head)};
    comm.exchange({&send, 1}, {});
    return;
  }
  work.recvs.clear();
  for (int r = 1; r < comm.size(); ++r) {
    const auto place = pieces_of(data, cuts, r, 1).head;
    work.recvs.push_back({r, std::as_writable_bytes(place), 0});
  }
  comm.exchange({}, work.recvs);
  for (const Recv& recv : work.recvs) expect_size(comm, "gather_regions", recv, recv.buffer.size());
}

}  // namespace oktopk
