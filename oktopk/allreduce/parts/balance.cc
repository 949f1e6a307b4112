// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/balance.h"

#include <algorithm>
#include <cmath>
#include <numeric>

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
  return std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const Sizes& s) { return sum + s.entries; });
}

Positions held(std::span<const Sizes> sizes, std::size_t rank) {
  const std::uint64_t begin = total(sizes.first(rank));
  return {begin, begin + sizes[rank].entries};
}

Positions due(std::uint64_t all, std::size_t P, std::size_t rank) { return {all * rank / P, all * (rank + 1) / P}; }

struct Peak {
  std::uint64_t load = 0;
  std::uint64_t width = 0;
};

// The largest load that cuts can divide.
Peak divisible_peak(const Cuts& cuts, std::span<const std::uint64_t> load) {
  Peak peak;
  for (std::size_t r = 0; r < load.size(); ++r) {
    const std::uint64_t width = cuts[r + 1] - cuts[r];
    if (width > 1 && load[r] > peak.load) peak = {load[r], width};
  }
  return peak;
}

}  // namespace

Cuts vote_on_cuts(const Allreduce::Step& step, Workspace& work) {
  std::vector<std::uint64_t> votes(static_cast<std::size_t>(step.P()) - 1);
  vote_cuts(step.mine.selection, step.n, step.P(), votes);
  allreduce_small(step.comm, std::span(votes), Reduction::sum, work);
  return cuts_from_votes(votes, step.n, step.P());
}

Cost vote_cost(int P) {
  const double L = ceil_log2(P);
  return sequential(L, L * (8 * (P - 1.0) + kCheckBytes));
}

bool Balance::is_due(std::span<const Sizes> sizes, double trigger) {
  std::uint64_t largest = 0;
  for (const Sizes& s : sizes) largest = std::max(largest, s.entries);
  const double mean = static_cast<double>(total(sizes)) / static_cast<double>(sizes.size());
  return static_cast<double>(largest) > trigger * mean;
}

void Balance::run(Communicator& comm, const FrameSpec& spec, std::span<Sizes> sizes, SparseVector& piece) {
  const std::size_t P = sizes.size();
  const std::uint64_t all = total(sizes);
  const auto rank = static_cast<std::size_t>(comm.rank());
  const Positions mine = held(sizes, rank);
  const Positions target = due(all, P, rank);
  const FrameSpec exact{{spec.codec.index, ValueCoding::fp32}, spec.range, spec.tag};
  outgoing_.resize(P);
  incoming_.resize(P);
  sends_.clear();
  recvs_.clear();
  const auto slice = [&](Positions p) { return piece.view().slice(p.begin - mine.begin, p.size()); };
  for (std::size_t r = 0; r < P; ++r) {
    if (r == rank) continue;
    if (const Positions out = overlap(mine, due(all, P, r)); out.size() > 0) {
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
  const auto take = [&](const Recv& recv) {
    decode_frame(expect_frame(recv.buffer.first(recv.size), exact, recv.peer), balanced_);
  };
  const auto above = std::find_if(recvs_.begin(), recvs_.end(), [&](const Recv& r) { return r.peer > comm.rank(); });
  balanced_.clear();
  std::for_each(recvs_.begin(), above, take);
  if (const Positions own = overlap(mine, target); own.size() > 0) balanced_.append(slice(own));
  std::for_each(above, recvs_.end(), take);
  if (balanced_.size() != target.size() || !is_canonical(balanced_))
    fail<CommError>("balance: expected ", target.size(), " sorted entries, got ", balanced_.size());
  std::swap(piece, balanced_);
  for (std::size_t r = 0; r < P; ++r) sizes[r].entries = due(all, P, r).size();
}

bool RecutRule::is_due(std::uint64_t step, const Cuts& cuts, std::span<const std::uint64_t> load) {
  const Peak peak = divisible_peak(cuts, load);
  const std::uint64_t total = std::accumulate(load.begin(), load.end(), std::uint64_t{0});
  const std::uint64_t uneven = total == 0 ? 0 : 1000 * peak.load * load.size() / total;
  if (uneven_ > 0 && step == last_ + 1) {  // the first step with the new cuts judges them
    const bool helped = 10 * uneven <= 9 * uneven_ || 4 * peak.width <= 3 * width_;
    pause_ = helped ? kPause : std::min(2 * pause_, kLongestPause);
  }
  if (step != 0 && step < last_ + pause_) return false;
  const double mean = static_cast<double>(total) / static_cast<double>(load.size());
  if (static_cast<double>(peak.load) <= 1.5 * mean + 4 * std::sqrt(mean)) return false;
  last_ = step;
  uneven_ = uneven;
  width_ = peak.width;
  return true;
}

void RecutRule::save(StateWriter& state) const { state.put(last_, pause_, uneven_, width_); }

void RecutRule::load(StateReader& state) {
  state.take_to(last_, pause_, uneven_, width_);
  require(pause_ >= kPause && pause_ <= kLongestPause, "state: a pause of ", pause_,
          " steps between two changes of the cuts, must be in ", kPause, "..", kLongestPause);
}

}  // namespace oktopk
