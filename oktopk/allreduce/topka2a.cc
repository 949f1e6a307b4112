// SPDX-License-Identifier: Apache-2.0
// topka2a: alltoall of the selected entries to the owners of equal regions, then a dense allgather
// of the reduced regions (Peng et al., ICPP'24). With the quota selector (k/P entries per region)
// all messages have the same size. The union is applied. COST: (P-1) + ceil(log2 P) messages,
// (2k+n)(P-1)/P words, plus frames. Between 1/(2(P-1)) and 1/2 of density it beats both gathering
// everything and dense.
#include "oktopk/allreduce/algorithms.h"
#include "oktopk/allreduce/frames.h"
#include "oktopk/allreduce/reduce_scatter.h"
#include "oktopk/select/selector.h"

namespace oktopk {
namespace {

class TopkA2A final : public Allreduce {
 public:
  using Allreduce::Allreduce;
  std::string_view name() const override { return "topka2a"; }

  Prediction predict(const Problem& problem) const override {
    const double P = problem.P;
    const double value = options().codec.lossless() ? 4 : 2;
    const double block = sizeof(std::uint64_t) + kFrameHeaderBytes + value * problem.n / P;
    const Cost cost =
        SparseReduceScatter::predict(direct_skips(problem.P), problem, options().codec, false) +
        Cost{static_cast<double>(ceil_log2(problem.P)), (P - 1) * block, 0};
    return {cost, {cost.messages, cost.bytes + (P - 1) * value, cost.reduced}};
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
    dense_.assign(mine.width(), 0.0F);
    step.device.add_at(dense_, mine.begin, scatter_.region());
    frame_.clear();
    encode_dense_frame({options().codec, mine, step.tag}, dense_, frame_,
                       error_sink(options().codec, out.returned));
    capacities_.clear();
    for (int r = 0; r < P; ++r)
      capacities_.push_back(kFrameHeaderBytes + 4 * region(cuts, r).width());
    gather_.run(step.comm, frame_, capacities_, work_);
    gather_.decode_all(cuts, step.tag, out.update);
  }

 private:
  SparseReduceScatter scatter_;
  FrameGather gather_;
  std::vector<float> dense_;
  Bytes frame_;
  std::vector<std::size_t> capacities_;
};

}  // namespace

std::unique_ptr<Allreduce> make_topka2a(const AllreduceOptions& options) {
  return std::make_unique<TopkA2A>(options);
}

}  // namespace oktopk
