// SPDX-License-Identifier: Apache-2.0
// Block d of rank i is region (i + d) mod P (dense_sum.h). Consecutive blocks are one contiguous range, or two ranges
// where they go around the end of the vector; only the latter are copied before they are sent.
#include "oktopk/allreduce/parts/dense_sum.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

// A round of an exchange: blocks [out, out + count) go to rank + shift, blocks [in, in + count) come from rank - shift.
struct Round {
  int shift, out, in, count;
};

int count_rounds(DenseRounds rounds, int P) { return rounds == DenseRounds::ring ? P - 1 : halving_rounds(P); }

// Ring: region r starts at rank r + 1, collects at every rank, and ends at rank r.
Round scatter_round(DenseRounds rounds, int P, int i) {
  if (rounds == DenseRounds::ring) return {1, P - 1 - i, P - 2 - i, 1};
  const auto [from, to] = halving_round(P, i);
  return {to, to, 0, from - to};
}

Round gather_round(DenseRounds rounds, int P, int i) {
  if (rounds == DenseRounds::ring) return {1, P - i, P - 1 - i, 1};
  const auto [from, to] = halving_round(P, halving_rounds(P) - 1 - i);
  return {-to, 0, to, from - to};
}

// Consecutive blocks as positions of the vector: [begin, begin + head) and [0, tail).
struct Pieces {
  std::size_t begin, head, tail;
  std::size_t size() const { return head + tail; }
};

Pieces pieces_of(const Communicator& comm, std::span<const std::size_t> cuts, int block, int count) {
  const auto first = static_cast<std::size_t>(neighbour(comm, block));
  const std::size_t end = first + static_cast<std::size_t>(count);
  const std::size_t P = cuts.size() - 1;
  return {cuts[first], cuts[std::min(end, P)] - cuts[first], end > P ? cuts[end - P] : 0};
}

void check(const Communicator& comm, std::size_t size, std::span<const std::size_t> cuts) {
  require(cuts.size() == static_cast<std::size_t>(comm.size()) + 1, "regions: ", cuts.size(),
          " cuts for a world of size ", comm.size(), ", must be one more");
  require(cuts.front() == 0 && cuts.back() == size && std::is_sorted(cuts.begin(), cuts.end()),
          "regions: cuts must rise from 0 to the vector's size ", size);
}

std::span<std::byte> scratch(Workspace& work, std::size_t size) {
  if (work.bytes.size() < size) {
    work.bytes.clear();  // growing must not copy the old content
    work.bytes.resize(size);
  }
  return std::span(work.bytes).first(size);
}

void copy(std::span<const std::byte> from, std::span<std::byte> to) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

void add_floats(std::span<const std::byte> wire, std::span<float> sums) {
  const auto* from = reinterpret_cast<const float*>(wire.data());
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += from[i];
}

void swap(Communicator& comm, std::string_view operation, int shift, std::span<const std::byte> out,
          std::span<std::byte> in) {
  const Send send{neighbour(comm, shift), out};
  Recv recv{neighbour(comm, -shift), in, 0};
  comm.exchange({&send, 1}, {&recv, 1});
  expect_size(comm, operation, recv, in.size());
}

}  // namespace

SumCoding plain_sums() {
  return {.width = sizeof(float),
          .is_plain = true,
          .split = [](std::span<float> sums, std::span<std::byte> wire) { copy(std::as_bytes(sums), wire); },
          .add = add_floats};
}

void dense_reduce_scatter(Communicator& comm, std::span<float> data, std::span<const std::size_t> cuts,
                          DenseRounds rounds, Workspace& work, const SumCoding& coding) {
  check(comm, data.size(), cuts);
  const std::size_t width = coding.width;
  for (int i = 0; i < count_rounds(rounds, comm.size()); ++i) {
    const Round round = scatter_round(rounds, comm.size(), i);
    const Pieces out = pieces_of(comm, cuts, round.out, round.count);
    const Pieces in = pieces_of(comm, cuts, round.in, round.count);
    const auto memory = scratch(work, (in.size() + out.size()) * width);
    const auto arriving = memory.first(in.size() * width);
    std::span<const std::byte> leaving = std::as_bytes(data.subspan(out.begin, out.head));
    if (!coding.is_plain || out.tail > 0) {
      const auto wire = memory.subspan(arriving.size());
      coding.split(data.subspan(out.begin, out.head), wire.first(out.head * width));
      coding.split(data.first(out.tail), wire.subspan(out.head * width));
      leaving = wire;
    }
    swap(comm, "dense_reduce_scatter", round.shift, leaving, arriving);
    coding.add(arriving.first(in.head * width), data.subspan(in.begin, in.head));
    coding.add(arriving.subspan(in.head * width), data.first(in.tail));
  }
}

void dense_allgather(Communicator& comm, std::span<std::byte> data, std::size_t width,
                     std::span<const std::size_t> cuts, DenseRounds rounds, Workspace& work) {
  check(comm, data.size() / width, cuts);
  for (int i = 0; i < count_rounds(rounds, comm.size()); ++i) {
    const Round round = gather_round(rounds, comm.size(), i);
    const Pieces out = pieces_of(comm, cuts, round.out, round.count);
    const Pieces in = pieces_of(comm, cuts, round.in, round.count);
    const auto memory = scratch(work, (in.size() + out.size()) * width);
    auto leaving = data.subspan(out.begin * width, out.head * width);
    if (out.tail > 0) {
      const auto wire = memory.subspan(in.size() * width);
      copy(leaving, wire);
      copy(data.first(out.tail * width), wire.subspan(leaving.size()));
      leaving = wire;
    }
    const auto head = data.subspan(in.begin * width, in.head * width);
    const auto arriving = in.tail > 0 ? memory.first(in.size() * width) : head;
    swap(comm, "dense_allgather", round.shift, leaving, arriving);
    if (in.tail == 0) continue;
    copy(arriving.first(head.size()), head);
    copy(arriving.subspan(head.size()), data);
  }
}

// Rank q collects from q + 1, q + 2, q + 4, ... and sends to q without its lowest set bit.
void tree_reduce(Communicator& comm, std::span<float> data, Workspace& work) {
  const int P = comm.size();
  const int rank = comm.rank();
  const auto arriving = scratch(work, data.size_bytes());
  for (int step = 1; step < P; step *= 2) {
    if ((rank & step) != 0) {
      const Send send{rank - step, std::as_bytes(data)};
      comm.exchange({&send, 1}, {});
      return;
    }
    if (rank + step >= P) continue;
    Recv recv{rank + step, arriving, 0};
    comm.exchange({}, {&recv, 1});
    expect_size(comm, "tree_reduce", recv, arriving.size());
    add_floats(arriving, data);
  }
}

void gather_regions(Communicator& comm, std::span<float> data, std::span<const std::size_t> cuts, Workspace& work) {
  check(comm, data.size(), cuts);
  const auto region = [&](int r) {
    const auto at = static_cast<std::size_t>(r);
    return std::as_writable_bytes(data.subspan(cuts[at], cuts[at + 1] - cuts[at]));
  };
  if (comm.rank() != 0) {
    const Send send{0, region(comm.rank())};
    comm.exchange({&send, 1}, {});
    return;
  }
  work.recvs.clear();
  for (int r = 1; r < comm.size(); ++r) work.recvs.push_back({r, region(r), 0});
  comm.exchange({}, work.recvs);
  for (const Recv& recv : work.recvs) expect_size(comm, "gather_regions", recv, recv.buffer.size());
}

}  // namespace oktopk
