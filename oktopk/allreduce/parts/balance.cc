// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/balance.h"

#include <algorithm>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

// Positions in the sorted vector that all ranks hold together.
struct Positions {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t size() const { return end > begin ? end - begin : 0; }
};

Positions overlap(Positions a, Positions b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

std::uint64_t total(std::span<const Sizes> sizes) {
  std::uint64_t sum = 0;
  for (const Sizes& s : sizes) sum += s.entries;
  return sum;
}

Positions held(std::span<const Sizes> sizes, std::size_t rank) {
  const std::uint64_t begin = total(sizes.first(rank));
  return {begin, begin + sizes[rank].entries};
}

Positions due(std::span<const Sizes> sizes, std::size_t rank) {
  const std::uint64_t all = total(sizes);
  return {all * rank / sizes.size(), all * (rank + 1) / sizes.size()};
}

}  // namespace

bool Balance::is_due(std::span<const Sizes> sizes, double trigger) {
  std::uint64_t largest = 0;
  for (const Sizes& s : sizes) largest = std::max(largest, s.entries);
  const double mean = static_cast<double>(total(sizes)) / static_cast<double>(sizes.size());
  return static_cast<double>(largest) > trigger * mean;
}

void Balance::run(Communicator& comm, std::span<const Sizes> sizes, const FrameSpec& spec, SparseVector& piece) {
  const auto P = sizes.size();
  const auto rank = static_cast<std::size_t>(comm.rank());
  const Positions mine = held(sizes, rank);
  const Positions target = due(sizes, rank);
  const FrameSpec exact{{spec.codec.index, ValueCoding::fp32}, spec.range, spec.tag};
  outgoing_.resize(P);
  incoming_.resize(P);
  sends_.clear();
  recvs_.clear();
  const auto slice = [&](Positions p) { return piece.view().slice(p.begin - mine.begin, p.size()); };
  for (std::size_t r = 0; r < P; ++r) {
    if (r == rank) continue;
    if (const Positions out = overlap(mine, due(sizes, r)); out.size() > 0) {
      outgoing_[r].clear();
      encode_frame(exact, slice(out), outgoing_[r]);
      sends_.push_back({static_cast<int>(r), outgoing_[r]});
    }
    if (const Positions in = overlap(held(sizes, r), target); in.size() > 0) {
      incoming_[r].resize(max_frame_bytes(exact.codec, in.size(), exact.range.width()));
      recvs_.push_back({static_cast<int>(r), incoming_[r]});
    }
  }
  comm.exchange(sends_, recvs_);
  balanced_.clear();
  const Positions own = overlap(mine, target);
  bool placed = own.size() == 0;
  for (const Recv& recv : recvs_) {
    if (!placed && recv.peer > comm.rank()) {
      balanced_.append(slice(own));
      placed = true;
    }
    const auto bytes = std::span<const std::byte>(recv.buffer).first(recv.size);
    decode_frame(expect_frame(bytes, exact, recv.peer), balanced_);
  }
  if (!placed) balanced_.append(slice(own));
  if (balanced_.size() != target.size() || !is_canonical(balanced_))
    fail<CommError>("balance: ", balanced_.size(), " entries arrived where ", target.size(), " sorted ones were due");
  std::swap(piece, balanced_);
}

}  // namespace oktopk
