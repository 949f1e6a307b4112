// SPDX-License-Identifier: Apache-2.0
// oktopk: Algorithm 1 of Li & Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep
// Learning" (PPoPP'22): split-and-reduce into regions that hold equal counts, then
// balance-and-allgatherv of the entries above a global threshold that is exact every tau' steps and
// reused in between.
//
// COST (reuse step): (P-1) + 2 ceil(log2 P) messages and 4k(P-1)/P words; with
// the balance step at most 2(P-1) + 2 ceil(log2 P) and 6k(P-1)/P; plus frames. Every tau' steps all
// non-zero sums are gathered (2 words per entry of the union), every tau steps P-1 votes.
#include <algorithm>
#include <cmath>

#include "oktopk/allreduce/algorithms.h"
#include "oktopk/allreduce/balance.h"
#include "oktopk/allreduce/frames.h"
#include "oktopk/allreduce/reduce_scatter.h"
#include "oktopk/base/error.h"
#include "oktopk/select/selector.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

class OkTopk final : public Allreduce {
 public:
  explicit OkTopk(const AllreduceOptions& options) : Allreduce(options) {
    require(options.tau >= 1, "oktopk: tau = ", options.tau, ", but it must be at least 1");
    require(options.tau_prime >= 1, "oktopk: tau' = ", options.tau_prime,
            ", but it must be at least 1");
    require(options.bucket >= 1, "oktopk: bucket = ", options.bucket,
            ", but it must be at least 1");
    require(options.balance_trigger >= 1, "oktopk: balance trigger = ", options.balance_trigger,
            ", but it must be at least 1");
  }
  std::string_view name() const override { return "oktopk"; }
  Prediction predict(const Problem& problem) const override;

 protected:
  void do_run(const Step& step, Outcome& out) override {
    const bool repartition_due = step.count % at(options().tau) == 0;
    const bool threshold_due = step.count % at(options().tau_prime) == 0 || step.k != k_;
    k_ = step.k;
    out.refreshed = repartition_due || threshold_due;
    if (repartition_due) repartition(step);
    split_and_reduce(step, out);
    if (threshold_due) {
      evaluate_threshold(step, out);
    } else {
      balance_and_allgatherv(step, out);
    }
  }

  void do_save(StateWriter& state) const override {
    state.put_all(std::span(cuts_));
    state.put(threshold_);
    state.put(std::uint64_t{k_});
  }
  void do_load(StateReader& state, Index n, int /*rank*/, int P) override {
    cuts_ = take_cuts(state, n, P);
    threshold_ = state.take_finite<float>("the global threshold", 0);
    k_ = state.take<std::uint64_t>();
  }

 private:
  void repartition(const Step& step);
  void split_and_reduce(const Step& step, Outcome& out);
  void evaluate_threshold(const Step& step, Outcome& out);
  void balance_and_allgatherv(const Step& step, Outcome& out);
  void gather(const Step& step, const Cuts& cuts, Outcome& out);

  Cuts cuts_;
  float threshold_ = 0;
  std::size_t k_ = 0;          // of the last step: another k needs another threshold
  std::vector<float> region_;  // dense sums of this rank's region
  SparseVector share_;         // what of it goes to everyone
  std::vector<Bytes> outgoing_, incoming_;
  std::vector<Send> sends_;
  std::vector<Recv> recvs_;
  std::vector<std::uint64_t> votes_;
  std::vector<Sizes> sizes_;
  std::vector<std::size_t> capacities_;
  Bytes frame_;
  Balance balance_;
  FrameGather gather_;
};

// Balanced local top-k with consensus (3.1.1).
void OkTopk::repartition(const Step& step) {
  const int P = step.comm.size();
  votes_.resize(at(P) - 1);
  vote_cuts(step.mine.selection, step.n, P, votes_);
  allreduce_small(step.comm, std::span(votes_), Reduction::sum, work_);
  cuts_ = cuts_from_votes(votes_, step.n, P);
}

// Destination rotation: in round j everybody talks to rank + j, so no rank is hit by all at once.
// Bucketing: the sums of one bucket are taken while the next is in flight.
void OkTopk::split_and_reduce(const Step& step, Outcome& out) {
  Communicator& comm = step.comm;
  const int P = comm.size();
  const int rank = comm.rank();
  const Range mine = region(cuts_, rank);
  const Codec codec = options().codec;
  outgoing_.resize(at(P));
  incoming_.resize(at(P));
  const std::size_t most = std::min(max_selection(step.k), mine.width());
  sends_.clear();
  recvs_.clear();
  for (int j = 1; j < P; ++j) {
    const int to = (rank + j) % P;
    outgoing_[at(j)].clear();
    encode_frame({codec, region(cuts_, to), step.tag}, part(step.mine.selection, region(cuts_, to)),
                 outgoing_[at(j)], error_sink(codec, out.returned));
    incoming_[at(j)].resize(max_frame_bytes(codec, most, mine.width()));
    sends_.push_back({to, outgoing_[at(j)]});
    recvs_.push_back({(rank + P - j) % P, incoming_[at(j)]});
  }
  region_.assign(mine.width(), 0.0F);
  step.device.add_at(region_, mine.begin, part(step.mine.selection, mine));
  const auto add = [&](std::span<Recv> bucket) {
    for (const Recv& recv : bucket) {
      const auto bytes = std::span<const std::byte>(recv.buffer).first(recv.size);
      decode_frame_add(expect_frame(bytes, step.tag, mine, recv.peer), region_);
    }
  };
  const std::span<Recv> all(recvs_);
  const auto peers = at(P) - 1;
  std::size_t done = 0;
  for (std::size_t first = 0; first < peers; first += at(options().bucket)) {
    const std::size_t count = std::min(at(options().bucket), peers - first);
    Pending bucket = comm.start(std::span(sends_).subspan(first, count), all.subspan(first, count));
    add(all.subspan(done, first - done));
    done = first;
    bucket.wait();
  }
  add(all.subspan(done));
}

// Gathers every non-zero sum: the k largest are this step's result and give the threshold for the
// next tau' steps. Not O(k); amortised over tau'.
void OkTopk::evaluate_threshold(const Step& step, Outcome& out) {
  share_.clear();
  step.device.select_at_least(region_, region(cuts_, step.comm.rank()).begin, 0.0F, share_);
  allgather_sizes(step.comm, {share_.size(), 0}, sizes_, work_);
  gather(step, cuts_, out);
  keep_largest(out.update, step.k);
  threshold_ = out.update.empty() ? 0.0F : kth_magnitude(out.update.val, out.update.size());
}

void OkTopk::balance_and_allgatherv(const Step& step, Outcome& out) {
  share_.clear();
  step.device.select_at_least(region_, region(cuts_, step.comm.rank()).begin, threshold_, share_);
  allgather_sizes(step.comm, {share_.size(), 0}, sizes_, work_);
  if (!Balance::is_due(sizes_, options().balance_trigger)) return gather(step, cuts_, out);
  const FrameSpec whole{options().codec, {0, step.n}, step.tag};
  balance_.run(step.comm, sizes_, whole, share_);
  std::uint64_t total = 0;
  for (const Sizes& s : sizes_) total += s.entries;
  const std::size_t P = sizes_.size();
  for (std::size_t r = 0; r < P; ++r) sizes_[r].entries = total * (r + 1) / P - total * r / P;
  gather(step, {}, out);
}

// Allgatherv of the ranks' shares, whose sizes are known. Empty cuts: a share may lie anywhere.
void OkTopk::gather(const Step& step, const Cuts& cuts, Outcome& out) {
  const Codec codec = options().codec;
  const auto range = [&](int r) { return cuts.empty() ? Range{0, step.n} : region(cuts, r); };
  frame_.clear();
  encode_frame({codec, range(step.comm.rank()), step.tag}, share_, frame_,
               error_sink(codec, out.returned));
  capacities_.clear();
  for (int r = 0; r < step.comm.size(); ++r) {
    const std::size_t width = range(r).width();
    capacities_.push_back(
        max_frame_bytes(codec, std::min<std::size_t>(sizes_[at(r)].entries, width), width));
  }
  gather_.run(step.comm, frame_, capacities_, work_);
  for (int r = 0; r < step.comm.size(); ++r) gather_.decode(r, range(r), step.tag, out.update);
  if (!is_canonical(out.update))
    fail<CommError>("oktopk: the gathered shares are not in rank order");
}

Prediction OkTopk::predict(const Problem& problem) const {
  const double P = problem.P;
  const double L = ceil_log2(problem.P);
  const auto frame = [&](double entries, double width) {
    return kFrameHeaderBytes + expected_payload_bytes(options().codec, entries, width);
  };
  const auto unbalanced = [&](const Problem& p) {
    const double gathered = p.refresh ? p.union_of(P) : p.result();
    const Cost split = SparseReduceScatter::predict(direct_skips(p.P), p, options().codec, false);
    Cost cost = concurrent(split.messages, split.bytes, split.entries, options().bucket) +
                sequential(2 * L, (P - 1) * (kSizesBytes + 8 + frame(gathered / P, p.n / P)),
                           (P - 1) * gathered / P);
    if (p.refresh) cost += sequential(L, L * (8 * (P - 1) + kCheckBytes));
    return cost;
  };
  Problem disjoint = problem;
  disjoint.disjoint = true;
  // Balancing moves at most all but its own share of each piece, to at most P - 1 ranks; shares are
  // then encoded relative to the whole.
  const double share = problem.result() / P;
  const Codec exact{options().codec.index, ValueCoding::fp32};
  const double widened = std::max(0.0, frame(share, problem.n) - frame(share, problem.n / P));
  const Cost balance = concurrent(P - 1,
                                  (P - 1) * (kFrameHeaderBytes + widened) +
                                      expected_payload_bytes(exact, share * (P - 1), problem.n),
                                  share * (P - 1));
  return {unbalanced(problem), unbalanced(disjoint) + balance};
}

}  // namespace

std::unique_ptr<Allreduce> make_oktopk(const AllreduceOptions& options) {
  return std::make_unique<OkTopk>(options);
}

}  // namespace oktopk
