// SPDX-License-Identifier: Apache-2.0
// spardl: SparDL's Spar-Reduce-Scatter and Bruck allgather (Zhao et al., ICDE'24), one team.
// Regions of equal width; whatever is sent is first pruned to ceil(k/P) entries per block, so
// fill-in never travels. COST: 2 ceil(log2 P) messages, 4k(P-1)/P words, plus frames. The price is
// a result that is not the global top-k (a fixed quota per block) and sums that are partial: holder
// keeps is mandatory.
#include <algorithm>
#include <cmath>

#include "oktopk/allreduce/algorithms.h"
#include "oktopk/allreduce/frames.h"
#include "oktopk/allreduce/reduce_scatter.h"
#include "oktopk/select/selector.h"

namespace oktopk {
namespace {

class SparDL final : public Allreduce {
 public:
  using Allreduce::Allreduce;
  std::string_view name() const override { return "spardl"; }

  Prediction predict(const Problem& problem) const override {
    const double P = problem.P;
    const double share = std::ceil(problem.k / P);
    const double block = sizeof(std::uint64_t) + kFrameHeaderBytes +
                         expected_payload_bytes(options().codec, share, problem.n / P);
    const Cost cost = SparseReduceScatter::predict(power_skips(problem.P), problem, options().codec,
                                                   false, share) +
                      Cost{static_cast<double>(ceil_log2(problem.P)), (P - 1) * block, 0};
    const double rounding =
        (P - 1) * (expected_payload_bytes(options().codec, share, problem.n / P) -
                   expected_payload_bytes(options().codec, problem.k / P, problem.n / P));
    return {cost, {cost.messages, cost.bytes + rounding, cost.reduced + P}};
  }

 protected:
  void do_run(const Step& step, Outcome& out) override {
    const int P = step.comm.size();
    const Cuts cuts = equal_cuts(step.n, P);
    const std::size_t quota =
        (step.k + static_cast<std::size_t>(P) - 1) / static_cast<std::size_t>(P);
    if (step.count == 0) scatter_.set_skips(power_skips(P));
    scatter_.run(step.comm, step.mine.selection,
                 {.cuts = cuts,
                  .codec = options().codec,
                  .tag = step.tag,
                  .limit = max_selection(step.k),
                  .quota = quota},
                 out.returned, out.dropped);
    frame_.clear();
    encode_frame({options().codec, region(cuts, step.comm.rank()), step.tag}, scatter_.region(),
                 frame_, error_sink(options().codec, out.returned));
    capacities_.clear();
    for (int r = 0; r < P; ++r) {
      const std::size_t width = region(cuts, r).width();
      capacities_.push_back(max_frame_bytes(options().codec, std::min(quota, width), width));
    }
    gather_.run(step.comm, frame_, capacities_, work_);
    gather_.decode_all(cuts, step.tag, out.update);
  }

 private:
  SparseReduceScatter scatter_;
  FrameGather gather_;
  Bytes frame_;
  std::vector<std::size_t> capacities_;
};

}  // namespace

std::unique_ptr<Allreduce> make_spardl(const AllreduceOptions& options) {
  return std::make_unique<SparDL>(options);
}

}  // namespace oktopk
