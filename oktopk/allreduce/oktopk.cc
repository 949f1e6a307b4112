// SPDX-License-Identifier: Apache-2.0
// oktopk: Algorithm 1 of Li & Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep
// Learning" (PPoPP'22): split-and-reduce into regions that hold equal counts, then
// balance-and-allgatherv of the entries above a global threshold that is exact now and then and
// reused in between (sum_threshold.h has the rules: the paper's, the released code's and ours).
//
// COST (reuse step): (P-1) + 2 ceil(log2 P) messages and 4k(P-1)/P words; with the balance step at
// most 2(P-1) + 2 ceil(log2 P) and 6k(P-1)/P; plus frames. An evaluation adds 6 ceil(log2 P) small
// messages (kth_sum.h); by the paper's rule it gathers all non-zero sums instead, 2 words per entry
// of the union. Every tau steps P-1 votes. Buffers: O(k), and one dense region of n/P floats.
#include <algorithm>
#include <cmath>

#include "oktopk/allreduce/algorithms.h"
#include "oktopk/allreduce/parts/balance.h"
#include "oktopk/allreduce/parts/frames.h"
#include "oktopk/allreduce/parts/kth_sum.h"
#include "oktopk/allreduce/parts/reduce_scatter.h"
#include "oktopk/allreduce/parts/sum_threshold.h"
#include "oktopk/base/error.h"
#include "oktopk/select/selector.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

class OkTopk final : public Allreduce {
 public:
  explicit OkTopk(const AllreduceOptions& options)
      : Allreduce(options), threshold_(options.thresholds, options.tau_prime) {
    require(options.tau >= 1, "oktopk: tau = ", options.tau, ", but it must be at least 1");
    require(options.tau_prime >= 1, "oktopk: tau' = ", options.tau_prime, ", but it must be at least 1");
    require(options.bucket >= 1, "oktopk: bucket = ", options.bucket, ", but it must be at least 1");
    require(options.balance_trigger >= 1, "oktopk: balance trigger = ", options.balance_trigger,
            ", but it must be at least 1");
  }
  std::string_view name() const override { return "oktopk"; }
  bool promises_volume() const override { return is_steered(); }
  Prediction predict(const Problem& problem) const override;

 protected:
  void do_run(const Step& step, Outcome& out) override {
    const bool repartition_due = step.count % at(options().tau) == 0;
    out.refreshed = repartition_due;
    if (repartition_due) repartition(step);
    split_and_reduce(step, out);
    if (threshold_.is_unknown(step.count, step.k) || !reuse_threshold(step, out)) {
      out.refreshed = true;
      is_steered() ? evaluate_by_counts(step, out) : evaluate_by_gathering(step, out);
    }
  }

  void do_save(StateWriter& state) const override {
    state.put_all(std::span(cuts_));
    threshold_.save(state);
  }
  void do_load(StateReader& state, Index n, int /*rank*/, int P) override {
    cuts_ = take_cuts(state, n, P);
    threshold_.load(state);
  }

 private:
  bool is_steered() const { return options().thresholds == ThresholdRule::steered; }
  void repartition(const Step& step);
  void split_and_reduce(const Step& step, Outcome& out);
  bool reuse_threshold(const Step& step, Outcome& out);
  void evaluate_by_gathering(const Step& step, Outcome& out);
  void evaluate_by_counts(const Step& step, Outcome& out);
  void keep_exact(std::uint64_t k, const KthSum& kth, int rank);
  void balance_and_gather(const Step& step, Outcome& out);
  void gather(const Step& step, const Cuts& cuts, Outcome& out);

  Cuts cuts_;
  SumThreshold threshold_;
  KthSumFinder finder_;
  std::vector<float> region_;  // dense sums of this rank's region
  SparseVector decoded_;       // a frame that arrived
  SparseVector share_;         // what of it goes to everyone
  std::vector<Bytes> outgoing_;
  std::vector<Bytes> incoming_;  // of the bucket in flight and of the one that is added
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
// Bucketing: the sums of one bucket are taken while the next is in flight, so two buckets of
// receive buffers are enough, however many ranks there are.
void OkTopk::split_and_reduce(const Step& step, Outcome& out) {
  Communicator& comm = step.comm;
  const int P = comm.size();
  const int rank = comm.rank();
  const Range mine = region(cuts_, rank);
  const Codec codec = options().codec;
  const std::size_t peers = at(P) - 1;
  const std::size_t bucket = std::min(at(options().bucket), std::max<std::size_t>(1, peers));
  outgoing_.resize(at(P));
  incoming_.resize(2 * bucket);
  const std::size_t most = std::min(max_selection(step.k), mine.width());
  sends_.clear();
  recvs_.clear();
  for (int j = 1; j < P; ++j) {
    const int to = (rank + j) % P;
    outgoing_[at(j)].clear();
    encode_frame({codec, region(cuts_, to), step.tag}, part(step.mine.selection, region(cuts_, to)), outgoing_[at(j)],
                 error_sink(codec, out.returned));
    Bytes& buffer = incoming_[(at(j) - 1) % incoming_.size()];
    buffer.resize(max_frame_bytes(codec, most, mine.width()));
    sends_.push_back({to, outgoing_[at(j)]});
    recvs_.push_back({(rank + P - j) % P, buffer});
  }
  region_.assign(mine.width(), 0.0F);
  step.device.add_at(region_, mine.begin, part(step.mine.selection, mine));
  const auto add = [&](std::span<Recv> arrived) {
    for (const Recv& recv : arrived) {
      const auto bytes = std::span<const std::byte>(recv.buffer).first(recv.size);
      decoded_.clear();
      decode_frame(expect_frame(bytes, {codec, mine, step.tag}, recv.peer), decoded_);
      step.device.add_at(region_, mine.begin, decoded_);
    }
  };
  const std::span<Recv> all(recvs_);
  std::size_t done = 0;
  for (std::size_t first = 0; first < peers; first += bucket) {
    const std::size_t count = std::min(bucket, peers - first);
    Pending pending = comm.start(std::span(sends_).subspan(first, count), all.subspan(first, count));
    add(all.subspan(done, first - done));
    done = first;
    pending.wait();
  }
  add(all.subspan(done));
}

// Gathers the sums that reach the threshold; false, with nothing gathered, when their number shows
// that it must be evaluated.
bool OkTopk::reuse_threshold(const Step& step, Outcome& out) {
  share_.clear();
  step.device.select_at_least(region_, region(cuts_, step.comm.rank()).begin, threshold_.value(), share_);
  allgather_sizes(step.comm, {share_.size(), 0}, sizes_, work_);
  std::uint64_t reached = 0;
  for (const Sizes& s : sizes_) reached += s.entries;
  if (threshold_.is_refuted(step.count, reached, step.k)) return false;
  balance_and_gather(step, out);
  threshold_.observe(out.update.val, step.k);
  return true;
}

// The paper's way: gathers every non-zero sum. The k largest are this step's result and give the
// threshold for the next tau' steps. Not O(k); amortised over tau'.
void OkTopk::evaluate_by_gathering(const Step& step, Outcome& out) {
  share_.clear();
  step.device.select_at_least(region_, region(cuts_, step.comm.rank()).begin, 0.0F, share_);
  allgather_sizes(step.comm, {share_.size(), 0}, sizes_, work_);
  gather(step, cuts_, out);
  const std::uint64_t available = out.update.size();
  keep_largest(out.update, step.k);
  const float kth = out.update.empty() ? 0.0F : kth_magnitude(out.update.val, out.update.size());
  threshold_.set(kth, available, step.count, step.k);
}

// Ours: the ranks find the k-th largest sum by counting, and gather no more than the k largest.
void OkTopk::evaluate_by_counts(const Step& step, Outcome& out) {
  share_.clear();
  step.device.select_at_least(region_, region(cuts_, step.comm.rank()).begin, 0.0F, share_);
  const KthSum kth = finder_.find(step.comm, share_.val, step.k, work_);
  Sizes mine{};
  for (const float v : share_.val) {
    mine.entries += std::fabs(v) > kth.magnitude ? 1 : 0;
    mine.bytes += std::fabs(v) == kth.magnitude ? 1 : 0;
  }
  allgather_sizes(step.comm, mine, sizes_, work_);
  keep_exact(std::min<std::uint64_t>(step.k, kth.total), kth, step.comm.rank());
  balance_and_gather(step, out);
  threshold_.set(kth.magnitude, kth.total, step.count, step.k);
}

// Shrinks this rank's share to its part of the k largest sums: among sums equal to the k-th, those
// with the lowest indices. On entry sizes_[r] holds the larger (entries) and the equal sums (bytes)
// of rank r; on return sizes_[r].entries is what it gathers.
void OkTopk::keep_exact(std::uint64_t k, const KthSum& kth, int rank) {
  std::uint64_t places = k - kth.larger;  // for sums equal to the k-th
  std::uint64_t mine = 0;
  for (std::size_t r = 0; r < sizes_.size(); ++r) {
    const std::uint64_t taken = std::min(places, sizes_[r].bytes);
    if (r == at(rank)) mine = taken;
    places -= taken;
    sizes_[r] = {sizes_[r].entries + taken, 0};
  }
  std::size_t kept = 0;
  for (std::size_t j = 0; j < share_.size(); ++j) {
    const float magnitude = std::fabs(share_.val[j]);
    const bool is_tie = magnitude == kth.magnitude;
    if (magnitude < kth.magnitude || (is_tie && mine == 0)) continue;
    mine -= is_tie ? 1 : 0;
    share_.idx[kept] = share_.idx[j];
    share_.val[kept++] = share_.val[j];
  }
  share_.resize(kept);
}

void OkTopk::balance_and_gather(const Step& step, Outcome& out) {
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
  encode_frame({codec, range(step.comm.rank()), step.tag}, share_, frame_, error_sink(codec, out.returned));
  capacities_.clear();
  for (int r = 0; r < step.comm.size(); ++r) {
    const std::size_t width = range(r).width();
    capacities_.push_back(max_frame_bytes(codec, std::min<std::size_t>(sizes_[at(r)].entries, width), width));
  }
  gather_.run(step.comm, frame_, capacities_, work_);
  for (int r = 0; r < step.comm.size(); ++r) gather_.decode(r, {codec, range(r), step.tag}, out.update);
  if (!is_canonical(out.update)) fail<CommError>("oktopk: the gathered shares are not in rank order");
}

Prediction OkTopk::predict(const Problem& problem) const {
  const double P = problem.P;
  const double L = ceil_log2(problem.P);
  const auto frame = [&](double entries, double width) {
    return expected_frame_bytes(options().codec, entries, width);
  };
  const bool gathers_union = problem.refresh && !is_steered();
  const auto unbalanced = [&](const Problem& p, double result) {
    const double gathered = gathers_union ? p.union_of(P) : result;
    const Cost split = SparseReduceScatter::predict(direct_skips(p.P), p, options().codec, false);
    const double sizes = (P - 1) * kSizesBytes;
    Cost cost =
        concurrent(split.messages, split.bytes, split.entries, options().bucket) +
        sequential(2 * L, sizes + (P - 1) * gathered_bytes(frame(gathered / P, p.n / P)), (P - 1) * gathered / P);
    if (p.refresh) cost += sequential(L, L * (8 * (P - 1) + kCheckBytes));
    if (p.refresh && is_steered()) cost += KthSumFinder::cost(p.P) + sequential(L, sizes);
    return cost;
  };
  Problem disjoint = problem;
  disjoint.disjoint = true;
  const double most = is_steered() && problem.gathered == 0 ? SumThreshold::most_gathered(problem.k) : problem.result();
  // Balancing moves at most all but its own share of each piece, to at most P - 1 ranks; shares are
  // then encoded relative to the whole.
  const double share = most / P;
  const Codec exact{options().codec.index, ValueCoding::fp32};
  const double widened = std::max(0.0, frame(share, problem.n) - frame(share, problem.n / P));
  const double head = expected_frame_bytes(exact, share, problem.n) - expected_payload_bytes(exact, share, problem.n);
  const Cost balance = concurrent(
      P - 1, (P - 1) * (head + widened) + expected_payload_bytes(exact, share * (P - 1), problem.n), share * (P - 1));
  return {unbalanced(problem, problem.result()), unbalanced(disjoint, most) + balance};
}

}  // namespace

std::unique_ptr<Allreduce> make_oktopk(const AllreduceOptions& options) { return std::make_unique<OkTopk>(options); }

}  // namespace oktopk
