// SPDX-License-Identifier: Apache-2.0
// topka2a: alltoall of the selected entries to the owners of equal regions, then a dense allgather of the reduced
// regions (Peng et al., ICPP'24). With the quota selector (k/P entries per region) all messages have the same size. The
// union is applied.
//
// COST: (P-1) + ceil(log2 P) messages, (2k+n)(P-1)/P words, plus frames. Between densities 1/(2(P-1)) and 1/2 it beats
// both gathering everything and dense.
#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/parts/gather.h"
#include "oktopk/allreduce/parts/reduce_scatter.h"

namespace oktopk {
namespace {

class TopkA2A final : public Allreduce {
 public:
  using Allreduce::Allreduce;
  std::string_view name() const override { return "topka2a"; }

  Prediction predict(const Problem& problem) const override {
    const double P = problem.P;
    const double width = problem.n / P;
    const Cost cost = SparseReduceScatter::predict(direct_skips(problem.P), problem, codec(), {}) +
                      ShareGather::cost(problem.P, expected_dense_frame_bytes(codec(), width), 0, width);
    // Regions differ by one value when P does not divide n.
    return {cost, cost + Cost{.bytes = (P - 1) * (codec().lossless() ? 4 : 2)}};
  }

 protected:
  void do_run(const Step& step, Outcome& out) override {
    const Cuts& cuts = scatter_.equal_regions(step, direct_skips);
    scatter_.run(step, cuts, {.dense = true}, out);
    encode_dense_frame(step.frame(region(cuts, step.comm.rank())), scatter_.dense_sums(), gather_.begin(),
                       error_sink(step.codec, out.returned));
    const auto capacity = [&](int, std::size_t width) { return dense_frame_bytes(step.codec, width); };
    gather_.run(step, cuts, capacity);
    gather_.decode(step, out.update);
  }

 private:
  SparseReduceScatter scatter_;
  ShareGather gather_;
};

}  // namespace

std::unique_ptr<Allreduce> make_topka2a(const AllreduceOptions& options) { return std::make_unique<TopkA2A>(options); }

}  // namespace oktopk
