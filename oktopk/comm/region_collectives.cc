// SPDX-License-Identifier: Apache-2.0
// Reduce-scatter and allgather of the regions of a vector (collectives.h), in place: together the
// dense allreduce. Block d of rank i is region (i + d) mod P, so consecutive blocks are one
// contiguous range, or two where they go around the end of the vector; only the latter are packed.
// Values travel as they are, or partial sums as halves: each schedule is written once, for both.
#include <algorithm>
#include <cstring>

#include "oktopk/comm/collectives.h"

namespace oktopk {
namespace {

// Regions first, first+1, ..., first+count-1 (mod P) of a vector: at most two pieces.
template <class Value>
struct Pieces {
  std::span<Value> head;
  std::span<Value> tail;

  std::size_t size() const { return head.size() + tail.size(); }
};

template <class Value>
Pieces<Value> pieces_of(std::span<Value> data, std::span<const std::size_t> cuts, int first, int count) {
  const auto P = cuts.size() - 1;
  const auto begin = static_cast<std::size_t>(first);
  const std::size_t end = begin + static_cast<std::size_t>(count);
  const std::size_t cut = std::min(end, P);
  Pieces<Value> pieces{data.subspan(cuts[begin], cuts[cut] - cuts[begin]), {}};
  if (end > P) pieces.tail = data.first(cuts[end - P]);
  return pieces;
}

template <class Value>
void copy(std::span<const Value> from, std::span<Value> to) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size_bytes());
}

Uninitialised<float>& memory_for(float /*value*/, Workspace& work) { return work.floats; }
Uninitialised<Bf16>& memory_for(Bf16 /*value*/, Workspace& work) { return work.halves; }

// Hands out consecutive parts of the scratch memory.
template <class Value>
class Scratch {
 public:
  Scratch(Workspace& work, std::size_t values) {
    auto& memory = memory_for(Value{}, work);
    if (memory.size() < values) {
      memory.clear();  // growing must not copy the old content
      memory.resize(values);
    }
    rest_ = memory;
  }
  std::span<Value> take(std::size_t values) {
    const std::span<Value> part = rest_.first(values);
    rest_ = rest_.subspan(values);
    return part;
  }

 private:
  std::span<Value> rest_;
};

void check(const Communicator& comm, std::size_t size, std::span<const std::size_t> cuts) {
  require(cuts.size() == static_cast<std::size_t>(comm.size()) + 1, "regions: ", cuts.size(),
          " cuts for a world of size ", comm.size(), ", must be one more");
  require(cuts.front() == 0 && cuts.back() == size && std::is_sorted(cuts.begin(), cuts.end()),
          "regions: cuts must rise from 0 to the vector's size ", size);
}

void check(const Communicator& comm, std::span<const Phase> phases) {
  const int from = phases.empty() ? 1 : phases.front().from_blocks;
  require(from == comm.size(), "regions: phases for a world of size ", from, ", this one has ", comm.size());
}

// What to send for `pieces`: themselves, or a packed copy where they are two.
template <class Value>
std::span<const Value> packed(const Pieces<Value>& pieces, Scratch<Value>& scratch) {
  if (pieces.tail.empty()) return pieces.head;
  const std::span<Value> copied = scratch.take(pieces.size());
  copy<Value>(pieces.head, copied);
  copy<Value>(pieces.tail, copied.subspan(pieces.head.size()));
  return copied;
}

template <class Value>
std::span<const Value> arrived_in(const Recv& recv) {
  return {reinterpret_cast<const Value*>(recv.buffer.data()), recv.buffer.size() / sizeof(Value)};
}

// Partial sums that travel as they are.
struct FloatWire {
  using Value = float;
  std::span<const float> take(const Pieces<float>& sums, Scratch<float>& scratch) const {
    return packed(sums, scratch);
  }
  void add(std::span<const float> from, std::span<float> to) const {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  }
};

struct HalfWire {
  using Value = Bf16;
  std::span<const Bf16> take(const Pieces<float>& sums, Scratch<Bf16>& scratch) const {
    const std::span<Bf16> halves = scratch.take(sums.size());
    coding.split(sums.head, halves.first(sums.head.size()));
    coding.split(sums.tail, halves.subspan(sums.head.size()));
    return halves;
  }
  void add(std::span<const Bf16> from, std::span<float> to) const { coding.add(from, to); }

  const HalfSums& coding;
};

template <class Wire>
void scatter(Communicator& comm, std::span<float> data, std::span<const std::size_t> cuts,
             std::span<const Phase> phases, Workspace& work, const Wire& wire) {
  using Value = typename Wire::Value;
  check(comm, data.size(), cuts);
  check(comm, phases);
  for (const Phase& phase : phases) {
    std::size_t needed = 0;
    for (const Hop& hop : phase.hops) {
      needed += pieces_of(data, cuts, neighbour(comm, hop.first), hop.count).size();
      needed += pieces_of(data, cuts, comm.rank(), hop.count).size();
    }
    Scratch<Value> scratch(work, needed);
    work.sends.clear();
    work.recvs.clear();
    for (const Hop& hop : phase.hops) {
      const auto out = pieces_of(data, cuts, neighbour(comm, hop.first), hop.count);
      const auto in = pieces_of(data, cuts, comm.rank(), hop.count);
      work.sends.push_back({neighbour(comm, hop.shift), std::as_bytes(wire.take(out, scratch))});
      const auto place = std::as_writable_bytes(scratch.take(in.size()));
      work.recvs.push_back({neighbour(comm, -hop.shift), place, 0});
    }
    comm.exchange(work.sends, work.recvs);
    for (std::size_t j = 0; j < phase.hops.size(); ++j) {
      const auto in = pieces_of(data, cuts, comm.rank(), phase.hops[j].count);
      expect_size(comm, "reduce_scatter", work.recvs[j], in.size() * sizeof(Value));
      const auto arrived = arrived_in<Value>(work.recvs[j]);
      wire.add(arrived.first(in.head.size()), in.head);
      wire.add(arrived.subspan(in.head.size()), in.tail);
    }
  }
}

template <class Value>
void gather(Communicator& comm, std::span<Value> data, std::span<const std::size_t> cuts, std::span<const Phase> phases,
            Workspace& work) {
  check(comm, data.size(), cuts);
  check(comm, phases);
  for (auto phase = phases.rbegin(); phase != phases.rend(); ++phase) {
    std::size_t needed = 0;
    for (const Hop& hop : phase->hops) {
      needed += pieces_of(data, cuts, comm.rank(), hop.count).size();
      needed += pieces_of(data, cuts, neighbour(comm, hop.first), hop.count).size();
    }
    Scratch<Value> scratch(work, needed);
    work.sends.clear();
    work.recvs.clear();
    for (const Hop& hop : phase->hops) {
      const auto out = pieces_of(data, cuts, comm.rank(), hop.count);
      const auto in = pieces_of(data, cuts, neighbour(comm, hop.first), hop.count);
      work.sends.push_back({neighbour(comm, -hop.shift), std::as_bytes(packed(out, scratch))});
      const auto place = in.tail.empty() ? in.head : scratch.take(in.size());
      work.recvs.push_back({neighbour(comm, hop.shift), std::as_writable_bytes(place), 0});
    }
    comm.exchange(work.sends, work.recvs);
    for (std::size_t j = 0; j < phase->hops.size(); ++j) {
      const Hop& hop = phase->hops[j];
      const auto in = pieces_of(data, cuts, neighbour(comm, hop.first), hop.count);
      expect_size(comm, "allgather_regions", work.recvs[j], in.size() * sizeof(Value));
      if (in.tail.empty()) continue;
      const auto arrived = arrived_in<Value>(work.recvs[j]);
      copy<Value>(arrived.first(in.head.size()), in.head);
      copy<Value>(arrived.subspan(in.head.size()), in.tail);
    }
  }
}

template <class Wire>
void ring_scatter(Communicator& comm, std::span<float> data, std::span<const std::size_t> cuts, Workspace& work,
                  const Wire& wire) {
  using Value = typename Wire::Value;
  check(comm, data.size(), cuts);
  const int P = comm.size();
  std::size_t widest = 0;
  for (int r = 0; r < P; ++r) widest = std::max(widest, pieces_of(data, cuts, r, 1).size());
  // Region r starts its way at rank r+1, collects at every rank, and ends at rank r.
  for (int step = 1; step < P; ++step) {
    Scratch<Value> scratch(work, 2 * widest);
    const auto out = pieces_of(data, cuts, neighbour(comm, -step), 1);
    const auto in = pieces_of(data, cuts, neighbour(comm, -step - 1), 1).head;
    const std::span<Value> arrived = scratch.take(in.size());
    const Send send{neighbour(comm, 1), std::as_bytes(wire.take(out, scratch))};
    Recv recv{neighbour(comm, -1), std::as_writable_bytes(arrived), 0};
    comm.exchange({&send, 1}, {&recv, 1});
    expect_size(comm, "ring_reduce_scatter", recv, arrived.size_bytes());
    wire.add(arrived, in);
  }
}

template <class Value>
void ring_gather(Communicator& comm, std::span<Value> data, std::span<const std::size_t> cuts) {
  check(comm, data.size(), cuts);
  for (int step = 0; step + 1 < comm.size(); ++step) {
    const auto out = pieces_of(data, cuts, neighbour(comm, -step), 1).head;
    const auto in = pieces_of(data, cuts, neighbour(comm, -step - 1), 1).head;
    const Send send{neighbour(comm, 1), std::as_bytes(out)};
    Recv recv{neighbour(comm, -1), std::as_writable_bytes(in), 0};
    comm.exchange({&send, 1}, {&recv, 1});
    expect_size(comm, "ring_allgather", recv, in.size_bytes());
  }
}

}  // namespace

void reduce_scatter(Communicator& comm, std::span<float> data, std::span<const std::size_t> cuts,
                    std::span<const Phase> phases, Workspace& work) {
  scatter(comm, data, cuts, phases, work, FloatWire{});
}

void reduce_scatter(Communicator& comm, std::span<float> data, std::span<const std::size_t> cuts,
                    std::span<const Phase> phases, Workspace& work, const HalfSums& coding) {
  scatter(comm, data, cuts, phases, work, HalfWire{coding});
}

void ring_reduce_scatter(Communicator& comm, std::span<float> data, std::span<const std::size_t> cuts,
                         Workspace& work) {
  ring_scatter(comm, data, cuts, work, FloatWire{});
}

void ring_reduce_scatter(Communicator& comm, std::span<float> data, std::span<const std::size_t> cuts, Workspace& work,
                         const HalfSums& coding) {
  ring_scatter(comm, data, cuts, work, HalfWire{coding});
}

void allgather_regions(Communicator& comm, std::span<float> data, std::span<const std::size_t> cuts,
                       std::span<const Phase> phases, Workspace& work) {
  gather(comm, data, cuts, phases, work);
}

void allgather_regions(Communicator& comm, std::span<Bf16> data, std::span<const std::size_t> cuts,
                       std::span<const Phase> phases, Workspace& work) {
  gather(comm, data, cuts, phases, work);
}

void ring_allgather(Communicator& comm, std::span<float> data, std::span<const std::size_t> cuts) {
  ring_gather(comm, data, cuts);
}

void ring_allgather(Communicator& comm, std::span<Bf16> data, std::span<const std::size_t> cuts) {
  ring_gather(comm, data, cuts);
}

// Rank q collects from q + 1, q + 2, q + 4, ... and sends to q without its lowest set bit.
void tree_reduce(Communicator& comm, std::span<float> data, Workspace& work) {
  const int P = comm.size();
  const int rank = comm.rank();
  Scratch<float> scratch(work, data.size());
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
    FloatWire{}.add(arrived, data);
  }
}

void gather_regions(Communicator& comm, std::span<float> data, std::span<const std::size_t> cuts, Workspace& work) {
  check(comm, data.size(), cuts);
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
