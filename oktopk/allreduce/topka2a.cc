// SPDX-License-Identifier: Apache-2.0
// topka2a: alltoall of the selected entries to the owners of equal regions, then a dense allgather
// of the reduced regions (Peng et al., ICPP'24). With the quota selector (k/P entries per region)
// all messages have the same size. The union is applied.
//
// COST: (P-1) + ceil(log2 P) messages,
// (2k+n)(P-1)/P words, plus frames. Between 1/(2(P-1)) and 1/2 of density it beats both gathering
// everything and dense.
#include "oktopk/allreduce/algorithms.h"
#include "oktopk/allreduce/parts/equal_regions.h"

namespace oktopk {
namespace {

class TopkA2A final : public EqualRegions {
 public:
  using EqualRegions::EqualRegions;
  std::string_view name() const override { return "topka2a"; }

  Prediction predict(const Problem& problem) const override {
    const double P = problem.P;
    const double value = options().codec.lossless() ? 4 : 2;
    const Cost cost =
        SparseReduceScatter::predict(direct_skips(problem.P), problem, options().codec, false) +
        predict_gather(problem.P, expected_dense_frame_bytes(options().codec, problem.n / P), 0, problem.n / P);
    // Regions differ by one value when P does not divide n.
    return {cost, cost + Cost{.bytes = (P - 1) * value}};
  }

 protected:
  void do_run(const Step& step, Outcome& out) override {
    scatter(step, direct_skips, 0, out);
    frame_.clear();
    encode_dense_frame(frame_spec(step), dense_sums(step), frame_, error_sink(options().codec, out.returned));
    gather(
        step, [&](int, std::size_t width) { return dense_frame_bytes(options().codec, width); }, out);
  }
};

}  // namespace

std::unique_ptr<Allreduce> make_topka2a(const AllreduceOptions& options) { return std::make_unique<TopkA2A>(options); }

}  // namespace oktopk
