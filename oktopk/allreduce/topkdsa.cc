// SPDX-License-Identifier: Apache-2.0
// topkdsa: SparCML's split-allgather with a dynamic switch (Renggli et al., SC'19). Regions of
// equal width; every rank reduces its own, then all regions are gathered: sparse, or dense where
// fill-in has made the dense block smaller. The union is applied. COST: (P-1) + 2 ceil(log2 P)
// messages; between 4k(P-1)/P words (supports equal) and (2k+n)(P-1)/P (fill-in complete), plus
// frames and the size exchange.
#include <algorithm>

#include "oktopk/allreduce/algorithms.h"
#include "oktopk/allreduce/frames.h"
#include "oktopk/allreduce/reduce_scatter.h"
#include "oktopk/select/selector.h"

namespace oktopk {
namespace {

class TopkDsa final : public Allreduce {
 public:
  using Allreduce::Allreduce;
  std::string_view name() const override { return "topkdsa"; }

  Prediction predict(const Problem& problem) const override {
    Problem disjoint = problem;
    disjoint.union_exponent = 1;
    return {cost(problem), cost(disjoint)};
  }

 protected:
  void do_run(const Step& step, Outcome& out) override {
    const int P = step.comm.size();
    const Cuts cuts = equal_cuts(step.n, P);
    if (step.count == 0) scatter_.set_skips(direct_skips(P));
    scatter_.run(
        step.comm, step.mine.selection,
        {.cuts = cuts, .codec = options().codec, .tag = step.tag, .limit = max_selection(step.k)},
        out.returned, out.dropped);
    const Range mine = region(cuts, step.comm.rank());
    encode_region(step, mine, out);
    allgather_sizes(step.comm, {scatter_.region().size(), frame_.size()}, sizes_, work_);
    capacities_.clear();
    for (int r = 0; r < P; ++r) {
      const std::size_t width = region(cuts, r).width();
      const std::size_t most = kFrameHeaderBytes + 4 * width;  // a dense block is the largest sent
      capacities_.push_back(std::min<std::size_t>(sizes_[static_cast<std::size_t>(r)].bytes, most));
    }
    gather_.run(step.comm, frame_, capacities_, work_);
    gather_.decode_all(cuts, step.tag, out.update);
  }

 private:
  // The smaller of the sparse and the dense frame. Errors are known only once that is decided.
  void encode_region(const Step& step, Range mine, Outcome& out) {
    const FrameSpec spec{options().codec, mine, step.tag};
    errors_.clear();
    frame_.clear();
    encode_frame(spec, scatter_.region(), frame_, error_sink(spec.codec, errors_));
    const std::size_t bytes_per_value = spec.codec.lossless() ? 4 : 2;
    if (frame_.size() > kFrameHeaderBytes + bytes_per_value * mine.width()) {
      dense_.assign(mine.width(), 0.0F);
      step.device.add_at(dense_, mine.begin, scatter_.region());
      errors_.clear();
      frame_.clear();
      encode_dense_frame(spec, dense_, frame_, error_sink(spec.codec, errors_));
    }
    out.returned.append(errors_);
  }

  Cost cost(const Problem& problem) const {
    const double P = problem.P;
    const double L = ceil_log2(problem.P);
    const double entries = problem.union_of(P) / P;
    const double sparse = expected_payload_bytes(options().codec, entries, problem.n / P);
    const double dense = (options().codec.lossless() ? 4 : 2) * problem.n / P;
    const double block = sizeof(std::uint64_t) + kFrameHeaderBytes + std::min(sparse, dense);
    return SparseReduceScatter::predict(direct_skips(problem.P), problem, options().codec, false) +
           Cost{2 * L, (P - 1) * (block + kSizesBytes), 0};
  }

  SparseReduceScatter scatter_;
  FrameGather gather_;
  Bytes frame_;
  SparseVector errors_;
  std::vector<float> dense_;
  std::vector<Sizes> sizes_;
  std::vector<std::size_t> capacities_;
};

}  // namespace

std::unique_ptr<Allreduce> make_topkdsa(const AllreduceOptions& options) {
  return std::make_unique<TopkDsa>(options);
}

}  // namespace oktopk
