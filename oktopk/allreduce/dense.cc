// SPDX-License-Identifier: Apache-2.0
// dense: the allreduce of all n values, the baseline and the fallback. Rabenseifner's scheme
// (reduce-scatter, then allgather) in its circulant form, which needs no power of two; a ring for
// long vectors, whose traffic goes to neighbours only.
//
// COST: 2 ceil(log2 P) messages (ring:
// 2(P-1)), 2n(P-1)/P words; no framing. Dense blocks carry no frame and so no checksum: integrity
// of their bytes is the transport's.
#include "oktopk/allreduce/algorithms.h"
#include "oktopk/sparse/cuts.h"

namespace oktopk {
namespace {

constexpr double kRingRegion = 1 << 20;  // values per region from which automatic takes the ring

class Dense final : public Allreduce {
 public:
  using Allreduce::Allreduce;
  std::string_view name() const override { return "dense"; }
  bool is_dense() const override { return true; }

  Prediction predict(const Problem& problem) const override {
    const double P = problem.P;
    const double messages =
        dense_uses_ring(options(), problem.n, problem.P) ? 2 * (P - 1) : 2 * ceil_log2(problem.P);
    const double n = problem.n;
    const Cost expected = sequential(messages, 2 * 4 * n * (P - 1) / P, 0, 2 * n * (P - 1) / P);
    // Regions differ by one value when P does not divide n.
    return {expected, expected + Cost{.bytes = 2 * 4 * (P - 1), .values = 2 * (P - 1)}};
  }

 protected:
  void do_run(const Step& step, Outcome& out) override {
    const int P = step.comm.size();
    out.dense_update.assign(step.mine.dense.begin(), step.mine.dense.end());
    if (cuts_.empty()) {
      const Cuts regions = equal_cuts(step.n, P);
      cuts_.assign(regions.begin(), regions.end());
    }
    if (dense_uses_ring(options(), step.n, P)) {
      ring_reduce_scatter(step.comm, out.dense_update, cuts_, work_);
      ring_allgather(step.comm, out.dense_update, cuts_);
    } else {
      const auto phases = halving_phases(P, work_);
      reduce_scatter(step.comm, out.dense_update, cuts_, phases, work_);
      allgather_regions(step.comm, out.dense_update, cuts_, phases, work_);
    }
  }

 private:
  std::vector<std::size_t> cuts_;
};

}  // namespace

bool dense_uses_ring(const AllreduceOptions& options, double n, int P) {
  return options.dense == DenseSchedule::ring ||
         (options.dense == DenseSchedule::automatic && n / P >= kRingRegion);
}

std::unique_ptr<Allreduce> make_dense(const AllreduceOptions& options) {
  return std::make_unique<Dense>(options);
}

}  // namespace oktopk
