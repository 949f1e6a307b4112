// SPDX-License-Identifier: Apache-2.0
// topkdsa: SparCML's split-allgather with a dynamic switch (Renggli et al., SC'19). Regions of
// equal width; every rank reduces its own, then all regions are gathered: sparse, or dense where
// fill-in has made the dense block smaller. The union is applied.
//
// COST: (P-1) + 2 ceil(log2 P)
// messages; between 4k(P-1)/P words (supports equal) and (2k+n)(P-1)/P (fill-in complete), plus
// frames and the size exchange.
#include <algorithm>

#include "oktopk/allreduce/algorithms.h"
#include "oktopk/allreduce/parts/equal_regions.h"

namespace oktopk {
namespace {

class TopkDsa final : public EqualRegions {
 public:
  using EqualRegions::EqualRegions;
  std::string_view name() const override { return "topkdsa"; }

  Prediction predict(const Problem& problem) const override {
    Problem disjoint = problem;
    disjoint.disjoint = true;
    const Cost expected = cost(problem);
    Cost bound = cost(disjoint);
    // Fill-in can make the bound's blocks dense where those expected are sparse.
    bound.entries = std::max(bound.entries, expected.entries);
    return {expected, bound};
  }

 protected:
  void do_run(const Step& step, Outcome& out) override {
    scatter(step, direct_skips, 0, out);
    encode_smaller(step, out);
    allgather_sizes(step.comm, {sums().size(), frame_.size()}, sizes_, work_);
    gather(
        step,
        [&](int r, std::size_t width) {
          return std::min<std::size_t>(sizes_[static_cast<std::size_t>(r)].bytes,
                                       dense_frame_bytes(options().codec, width));
        },
        out);
  }

 private:
  // The smaller of the sparse and the dense frame; rounding errors are those of the one that is
  // sent.
  void encode_smaller(const Step& step, Outcome& out) {
    SparseVector* errors = error_sink(options().codec, errors_);
    errors_.clear();
    frame_.clear();
    encode_frame(frame_spec(step), sums(), frame_, errors);
    if (frame_.size() > dense_frame_bytes(options().codec, mine(step).width())) {
      errors_.clear();
      frame_.clear();
      encode_dense_frame(frame_spec(step), dense_sums(step), frame_, errors);
    }
    out.returned.append(errors_);
  }

  Cost cost(const Problem& problem) const {
    const double P = problem.P;
    const double sparse = expected_frame_bytes(options().codec, problem.union_of(P) / P, problem.n / P);
    const double dense = expected_dense_frame_bytes(options().codec, problem.n / P);
    return SparseReduceScatter::predict(direct_skips(problem.P), problem, options().codec, false) +
           sequential(ceil_log2(problem.P), (P - 1) * kSizesBytes) +
           (sparse <= dense ? predict_gather(problem.P, sparse, problem.union_of(P) / P, 0)
                            : predict_gather(problem.P, dense, 0, problem.n / P));
  }

  SparseVector errors_;
  std::vector<Sizes> sizes_;
};

}  // namespace

std::unique_ptr<Allreduce> make_topkdsa(const AllreduceOptions& options) { return std::make_unique<TopkDsa>(options); }

}  // namespace oktopk
