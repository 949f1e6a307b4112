// SPDX-License-Identifier: Apache-2.0
// oktopk: Algorithm 1 of Li & Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning" (PPoPP'22):
// split-and-reduce into regions that hold equal counts, then balance-and-allgatherv of the entries above a global
// threshold, which is exact now and then and reused in between (parts/thresholds.h has the rules: the paper's, the
// released code's and ours).
//
// COST (reuse step): (P-1) + 2 ceil(log2 P) messages and 4k(P-1)/P words; with the balance step at most 2(P-1) + 2
// ceil(log2 P) and 6k(P-1)/P; plus frames. An evaluation adds 6 ceil(log2 P) small messages (find_kth_sum); by the
// paper's rule it gathers all non-zero sums instead, 2 words per entry of the union. Every tau steps P-1 votes.
#include <algorithm>
#include <cmath>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/parts/balance.h"
#include "oktopk/allreduce/parts/gather.h"
#include "oktopk/allreduce/parts/reduce_scatter.h"
#include "oktopk/allreduce/parts/thresholds.h"
#include "oktopk/base/error.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

// Sums of a rank, compared with the k-th largest of all.
struct Counts {
  std::uint64_t larger = 0;
  std::uint64_t equal = 0;
};

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
    if (step.count == 0) scatter_.set_skips(direct_skips(step.P()));
    out.refreshed = step.count % at(options().tau) == 0;
    if (out.refreshed) cuts_ = vote_on_cuts(step, work_);
    scatter_.run(step, cuts_, {.bucket = at(options().bucket)}, out);
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
    scatter_.set_skips(direct_skips(P));
    cuts_ = take_cuts(state, n, P);
    threshold_.load(state);
  }

 private:
  bool is_steered() const { return options().thresholds == ThresholdRule::steered; }
  void take_share(float threshold);
  bool reuse_threshold(const Step& step, Outcome& out);
  void evaluate_by_gathering(const Step& step, Outcome& out);
  void evaluate_by_counts(const Step& step, Outcome& out);
  void keep_exact(std::uint64_t places, int rank);
  void balance_and_gather(const Step& step, Outcome& out);
  void gather(const Step& step, const Cuts& cuts, Outcome& out);

  Cuts cuts_;
  SumThreshold threshold_;
  SparseReduceScatter scatter_;
  SparseVector share_;  // the entries of this rank's region that go to everyone
  std::vector<Sizes> sizes_;
  Balance balance_;
  ShareGather gather_;
};

void OkTopk::take_share(float threshold) {
  share_.clear();
  share_.append(scatter_.sums());
  keep_at_least(share_, threshold);
}

// Gathers the sums that reach the threshold. Returns false, with nothing gathered, when their number shows that the
// threshold must be evaluated.
bool OkTopk::reuse_threshold(const Step& step, Outcome& out) {
  take_share(threshold_.value());
  allgather_sizes(step.comm, {share_.size(), 0}, sizes_, work_);
  std::uint64_t reached = 0;
  for (const Sizes& s : sizes_) reached += s.entries;
  if (threshold_.is_refuted(step.count, reached, step.k)) return false;
  balance_and_gather(step, out);
  threshold_.observe(out.update.val, step.k);
  return true;
}

// The paper's way: gathers every non-zero sum. The k largest are this step's result and give the threshold for the next
// tau' steps. Not O(k); amortised over tau'.
void OkTopk::evaluate_by_gathering(const Step& step, Outcome& out) {
  take_share(0.0F);
  allgather_sizes(step.comm, {share_.size(), 0}, sizes_, work_);
  gather(step, cuts_, out);
  const std::uint64_t available = out.update.size();
  keep_largest(out.update, step.k);
  const float kth = out.update.empty() ? 0.0F : kth_magnitude(out.update.val, out.update.size());
  threshold_.set(kth, available, step.count, step.k);
}

// Ours: the ranks find the k-th largest sum by counting, and gather no more than the k largest.
void OkTopk::evaluate_by_counts(const Step& step, Outcome& out) {
  take_share(0.0F);
  const KthSum kth = find_kth_sum(step.comm, share_.val, step.k, work_);
  Counts mine;
  for (const float v : share_.val) {
    mine.larger += std::fabs(v) > kth.magnitude ? 1 : 0;
    mine.equal += std::fabs(v) == kth.magnitude ? 1 : 0;
  }
  allgather_sizes(step.comm, {mine.larger, mine.equal}, sizes_, work_);
  keep_exact(std::min<std::uint64_t>(step.k, kth.total) - kth.larger, step.comm.rank());
  balance_and_gather(step, out);
  threshold_.set(kth.magnitude, kth.total, step.count, step.k);
}

// Shrinks this rank's share to its part of the k largest sums. There are `places` for sums equal to the k-th, which go
// to the lowest indices. On entry sizes_[r] has the Counts of rank r; on return sizes_[r].entries is the size of its
// share.
void OkTopk::keep_exact(std::uint64_t places, int rank) {
  for (Sizes& size : sizes_) {
    const Counts counts{size.entries, size.bytes};
    const std::uint64_t taken = std::min(places, counts.equal);
    places -= taken;
    size = {counts.larger + taken, 0};
  }
  keep_largest(share_, sizes_[at(rank)].entries);
}

void OkTopk::balance_and_gather(const Step& step, Outcome& out) {
  if (!Balance::is_due(sizes_, options().balance_trigger)) return gather(step, cuts_, out);
  balance_.run(step.comm, step.frame({0, step.n}), sizes_, share_);
  gather(step, {}, out);
}

// Allgatherv of the ranks' shares, whose sizes are known. Empty cuts: a share may lie anywhere.
void OkTopk::gather(const Step& step, const Cuts& cuts, Outcome& out) {
  const Range mine = cuts.empty() ? Range{0, step.n} : region(cuts, step.comm.rank());
  encode_frame(step.frame(mine), share_, gather_.begin(), error_sink(step.codec, out.returned));
  const auto capacity = [&](int r, std::size_t width) {
    return max_frame_bytes(step.codec, std::min<std::size_t>(sizes_[at(r)].entries, width), width);
  };
  gather_.run(step, cuts, capacity);
  gather_.decode(step, out.update);
  if (!is_canonical(out.update)) fail<CommError>("oktopk: the gathered shares are not in rank order");
}

Prediction OkTopk::predict(const Problem& problem) const {
  const double P = problem.P;
  const auto frame = [&](double entries, double width) { return expected_frame_bytes(codec(), entries, width); };
  const bool gathers_union = problem.refresh && !is_steered();
  const auto unbalanced = [&](const Problem& p, double result) {
    const double share = (gathers_union ? p.union_of(P) : result) / P;
    Cost cost = SparseReduceScatter::predict(direct_skips(p.P), p, codec(), {.bucket = at(options().bucket)}) +
                sizes_cost(p.P) + ShareGather::cost(p.P, frame(share, p.n / P), share);
    if (p.refresh) cost += vote_cost(p.P);
    if (p.refresh && is_steered()) cost += kth_sum_cost(p.P) + sizes_cost(p.P);
    return cost;
  };
  Problem disjoint = problem;
  disjoint.disjoint = true;
  const double most = is_steered() && problem.gathered == 0 ? SumThreshold::most_gathered(problem.k) : problem.result();
  // Balancing moves at most all but its own share of each piece, to at most P - 1 ranks. Shares are then encoded
  // relative to all of [0, n).
  const double share = most / P;
  const Codec exact{codec().index, ValueCoding::fp32};
  const double widened = std::max(0.0, frame(share, problem.n) - frame(share, problem.n / P));
  const double head = expected_frame_bytes(exact, share, problem.n) - expected_payload_bytes(exact, share, problem.n);
  const Cost balance = concurrent(
      P - 1, (P - 1) * (head + widened) + expected_payload_bytes(exact, share * (P - 1), problem.n), share * (P - 1));
  return {unbalanced(problem, problem.result()), unbalanced(disjoint, most) + balance};
}

}  // namespace

std::unique_ptr<Allreduce> make_oktopk(const AllreduceOptions& options) { return std::make_unique<OkTopk>(options); }

}  // namespace oktopk
