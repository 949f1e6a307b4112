// SPDX-License-Identifier: Apache-2.0
// spardl: SparDL's Spar-Reduce-Scatter and Bruck allgather (Zhao et al., ICDE'24), one team. Regions have equal width;
// every block is pruned to ceil(k/P) entries before it is sent, so fill-in never travels.
//
// COST: 2 ceil(log2 P) messages, 4k(P-1)/P words, plus frames. In return the result is not the global top-k (each block
// has a fixed quota), and pruned sums are partial: the residual rule must be holder keeps.
#include <algorithm>
#include <cmath>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/parts/gather.h"
#include "oktopk/allreduce/parts/reduce_scatter.h"

namespace oktopk {
namespace {

class SparDL final : public Allreduce {
 public:
  using Allreduce::Allreduce;
  std::string_view name() const override { return "spardl"; }

  Prediction predict(const Problem& problem) const override {
    const double P = problem.P;
    const double quota = std::ceil(problem.k / P);
    const auto frame = [&](double entries) { return expected_frame_bytes(codec(), entries, problem.n / P); };
    const Cost cost = SparseReduceScatter::predict(power_skips(problem.P), problem, codec(),
                                                   {.quota = static_cast<std::size_t>(quota)}) +
                      ShareGather::cost(problem.P, frame(quota), quota);
    const double rounding = (P - 1) * (frame(quota) - frame(problem.k / P));
    return {cost, cost + Cost{.bytes = rounding, .entries = P}};
  }

 protected:
  void do_run(const Step& step, Outcome& out) override {
    const auto P = static_cast<std::size_t>(step.P());
    const std::size_t quota = (step.k + P - 1) / P;
    const Cuts& cuts = scatter_.equal_regions(step, power_skips);
    scatter_.run(step, cuts, {.quota = quota}, out);
    encode_frame(step.frame(region(cuts, step.comm.rank())), scatter_.sums(), gather_.begin(),
                 error_sink(step.codec, out.returned));
    const auto capacity = [&](int, std::size_t width) {
      return max_frame_bytes(step.codec, std::min(quota, width), width);
    };
    gather_.run(step, cuts, capacity);
    gather_.decode(step, out.update);
  }

 private:
  SparseReduceScatter scatter_;
  ShareGather gather_;
};

}  // namespace

std::unique_ptr<Allreduce> make_spardl(const AllreduceOptions& options) { return std::make_unique<SparDL>(options); }

}  // namespace oktopk
