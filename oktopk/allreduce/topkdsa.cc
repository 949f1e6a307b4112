// SPDX-License-Identifier: Apache-2.0
// topkdsa: SparCML's split-allgather with a dynamic switch (Renggli et al., SC'19). Regions have equal width; every
// rank reduces its own, then all regions are gathered: sparse, or dense where fill-in has made the dense block smaller.
// The union is applied.
//
// COST: (P-1) + 2 ceil(log2 P) messages; between 4k(P-1)/P words (supports equal) and (2k+n)(P-1)/P (fill-in complete),
// plus frames and the size exchange.
#include <algorithm>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/parts/gather.h"
#include "oktopk/allreduce/parts/reduce_scatter.h"

namespace oktopk {
namespace {

class TopkDsa final : public Allreduce {
 public:
  using Allreduce::Allreduce;
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
    const Cuts& cuts = scatter_.equal_regions(step, direct_skips);
    scatter_.run(step, cuts, {}, out);
    const std::size_t bytes = encode_smaller(step, region(cuts, step.comm.rank()), out);
    allgather_sizes(step.comm, {scatter_.sums().size(), bytes}, sizes_, work_);
    const auto capacity = [&](int r, std::size_t width) {
      return std::min<std::size_t>(sizes_[static_cast<std::size_t>(r)].bytes, dense_frame_bytes(step.codec, width));
    };
    gather_.run(step, cuts, capacity);
    gather_.decode(step, out.update);
  }

 private:
  // Encodes the smaller of the sparse and the dense frame; only the rounding errors of that frame count.
  std::size_t encode_smaller(const Step& step, Range mine, Outcome& out) {
    SparseVector* errors = error_sink(step.codec, errors_);
    errors_.clear();
    Bytes& frame = gather_.begin();
    encode_frame(step.frame(mine), scatter_.sums(), frame, errors);
    if (frame.size() > dense_frame_bytes(step.codec, mine.width())) {
      dense_.assign(mine.width(), 0.0F);
      step.device.add_at(dense_, mine.begin, scatter_.sums());
      errors_.clear();
      frame.clear();
      encode_dense_frame(step.frame(mine), dense_, frame, errors);
    }
    out.returned.append(errors_);
    return frame.size();
  }

  Cost cost(const Problem& problem) const {
    const double P = problem.P;
    const double width = problem.n / P;
    const double entries = problem.union_of(P) / P;
    const double sparse = expected_frame_bytes(codec(), entries, width);
    const double dense = expected_dense_frame_bytes(codec(), width);
    return SparseReduceScatter::predict(direct_skips(problem.P), problem, codec(), {}) + sizes_cost(problem.P) +
           (sparse <= dense ? ShareGather::cost(problem.P, sparse, entries)
                            : ShareGather::cost(problem.P, dense, 0, width));
  }

  SparseReduceScatter scatter_;
  SparseVector errors_;
  std::vector<float> dense_;
  std::vector<Sizes> sizes_;
  ShareGather gather_;
};

}  // namespace

std::unique_ptr<Allreduce> make_topkdsa(const AllreduceOptions& options) { return std::make_unique<TopkDsa>(options); }

}  // namespace oktopk
