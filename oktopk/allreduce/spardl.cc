// SPDX-License-Identifier: Apache-2.0
// spardl: SparDL's Spar-Reduce-Scatter and Bruck allgather (Zhao et al., ICDE'24), one team.
// Regions of equal width; whatever is sent is first pruned to ceil(k/P) entries per block, so
// fill-in never travels.
//
// COST: 2 ceil(log2 P) messages, 4k(P-1)/P words, plus frames. The price is
// a result that is not the global top-k (a fixed quota per block) and sums that are partial: holder
// keeps is mandatory.
#include <algorithm>
#include <cmath>

#include "oktopk/allreduce/algorithms.h"
#include "oktopk/allreduce/parts/equal_regions.h"

namespace oktopk {
namespace {

class SparDL final : public EqualRegions {
 public:
  using EqualRegions::EqualRegions;
  std::string_view name() const override { return "spardl"; }

  Prediction predict(const Problem& problem) const override {
    const double P = problem.P;
    const double quota = std::ceil(problem.k / P);
    const auto frame = [&](double entries) { return expected_frame_bytes(options().codec, entries, problem.n / P); };
    const Cost cost = SparseReduceScatter::predict(power_skips(problem.P), problem, options().codec, false, quota) +
                      predict_gather(problem.P, frame(quota), quota, 0);
    const double rounding = (P - 1) * (frame(quota) - frame(problem.k / P));
    return {cost, cost + Cost{.bytes = rounding, .entries = P}};
  }

 protected:
  void do_run(const Step& step, Outcome& out) override {
    const auto P = static_cast<std::size_t>(step.comm.size());
    const std::size_t quota = (step.k + P - 1) / P;
    scatter(step, power_skips, quota, out);
    frame_.clear();
    encode_frame(frame_spec(step), sums(), frame_, error_sink(options().codec, out.returned));
    gather(
        step, [&](int, std::size_t width) { return max_frame_bytes(options().codec, std::min(quota, width), width); },
        out);
  }
};

}  // namespace

std::unique_ptr<Allreduce> make_spardl(const AllreduceOptions& options) { return std::make_unique<SparDL>(options); }

}  // namespace oktopk
