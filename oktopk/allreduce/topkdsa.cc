// SPDX-License-Identifier: Apache-2.0
// Two algorithms on regions of equal width: every rank sends its entries to the owners of their regions, the owners sum
// them, and all ranks gather all regions. The union is applied.
//
// topkdsa: SparCML's split-allgather with a dynamic switch (Renggli et al., SC'19). An owner sends its region sparse,
// or dense where fill-in has made the dense block smaller; the sizes are exchanged first. COST: (P-1) + 2 ceil(log2 P)
// messages; between 4k(P-1)/P words (supports equal) and (2k+n)(P-1)/P (fill-in complete), plus frames and sizes.
//
// topka2a: always dense (Peng et al., ICPP'24). With the quota selector (k/P entries per region) all messages have the
// same size. COST: (P-1) + ceil(log2 P) messages, (2k+n)(P-1)/P words, plus frames. Between densities 1/(2(P-1)) and
// 1/2 it beats both gathering everything and dense.
#include <algorithm>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/parts/gather.h"
#include "oktopk/allreduce/parts/reduce_scatter.h"

namespace oktopk {
namespace {

class SplitGather final : public Allreduce {
 public:
  SplitGather(std::string_view name, bool always_dense, const AllreduceOptions& options)
      : Allreduce(options), name_(name), always_dense_(always_dense) {}
  std::string_view name() const override { return name_; }

  Prediction predict(const Problem& problem) const override {
    const Cost expected = cost(problem);
    // Regions differ by one value when P does not divide n.
    if (always_dense_) return {expected, expected + Cost{.bytes = (problem.P - 1.0) * (codec().lossless() ? 4 : 2)}};
    Problem disjoint = problem;
    disjoint.disjoint = true;
    Cost bound = cost(disjoint);
    // Fill-in can make the bound's blocks dense where those expected are sparse.
    bound.entries = std::max(bound.entries, expected.entries);
    return {expected, bound};
  }

 protected:
  void do_run(const Step& step, Outcome& out) override {
    const Cuts& cuts = scatter_.equal_regions(step, direct_skips);
    scatter_.run(step, cuts, {}, out);
    const std::size_t bytes = encode(step, region(cuts, step.comm.rank()), out);
    if (!always_dense_) allgather_sizes(step.comm, {scatter_.sums().size(), bytes}, sizes_, work_);
    const auto capacity = [&](int r, std::size_t width) {
      const std::size_t dense = dense_frame_bytes(step.codec, width);
      return always_dense_ ? dense : std::min<std::size_t>(sizes_[static_cast<std::size_t>(r)].bytes, dense);
    };
    gather_.run(step, cuts, capacity);
    gather_.decode(step, out.update);
  }

 private:
  // Encodes the dense frame, or the sparse one where it is allowed and smaller; only the rounding errors of that frame
  // count.
  std::size_t encode(const Step& step, Range mine, Outcome& out) {
    const CooView sums = scatter_.sums();
    SparseVector* errors = error_sink(step.codec, errors_);
    errors_.clear();
    Bytes& frame = gather_.begin();
    if (!always_dense_) encode_frame(step.frame(mine), sums, frame, errors);
    if (always_dense_ || frame.size() > dense_frame_bytes(step.codec, mine.width())) {
      dense_.assign(mine.width(), 0.0F);
      for (std::size_t j = 0; j < sums.size(); ++j) dense_[sums.idx[j] - mine.begin] = sums.val[j];
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
    Cost cost = SparseReduceScatter::predict(direct_skips(problem.P), problem, codec(), {});
    if (!always_dense_) cost += sizes_cost(problem.P);
    return cost + (always_dense_ || sparse > dense ? ShareGather::cost(problem.P, dense, 0, width)
                                                   : ShareGather::cost(problem.P, sparse, entries));
  }

  std::string_view name_;
  bool always_dense_;
  SparseReduceScatter scatter_;
  SparseVector errors_;
  std::vector<float> dense_;  // on its way to the wire
  std::vector<Sizes> sizes_;
  ShareGather gather_;
};

}  // namespace

std::unique_ptr<Allreduce> make_topkdsa(const AllreduceOptions& options) {
  return std::make_unique<SplitGather>("topkdsa", false, options);
}

std::unique_ptr<Allreduce> make_topka2a(const AllreduceOptions& options) {
  return std::make_unique<SplitGather>("topka2a", true, options);
}

}  // namespace oktopk
