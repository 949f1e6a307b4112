// SPDX-License-Identifier: Apache-2.0
// dense: the allreduce of all n values, the baseline and the fallback. Rabenseifner's scheme (reduce-scatter, then
// allgather) in its circulant form, which needs no power of two; a ring for long vectors, to neighbours only.
//
// With a lossy codec values travel as bf16 (a dense block has no logarithmic codings). The rank that rounds a partial
// sum keeps the exact rounding error. All ranks apply the rounded sum of a region, its owner included.
//
// COST: 2 ceil(log2 P) messages (ring: 2(P-1)), 2n(P-1)/P values of 4 or 2 bytes. Dense blocks carry no frame and so no
// checksum: the transport must protect their bytes.
#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/parts/dense_sum.h"
#include "oktopk/base/error.h"
#include "oktopk/cpu/kernels.h"
#include "oktopk/sparse/cuts.h"

namespace oktopk {
namespace {

constexpr double kRingRegion = 1 << 20;  // values per region from which automatic takes the ring

void split(std::span<float> sums, std::span<std::byte> halves) {
  const bool finite = kernels().codings.split_bf16(sums.data(), sums.size(), halves.data());
  require(finite, "a sum that would travel as bf16 is not finite");
}

void check_arrived(bool finite) {
  if (!finite) fail<CommError>("dense: a bf16 value that arrived is not finite");
}

constexpr SumCoding kBf16{.width = sizeof(Bf16),
                          .is_plain = false,
                          .split = split,
                          .add = [](std::span<const std::byte> halves, std::span<float> sums) {
                            check_arrived(kernels().codings.add_bf16(halves.data(), sums.size(), sums.data()));
                          }};

class Dense final : public Allreduce {
 public:
  using Allreduce::Allreduce;
  std::string_view name() const override { return "dense"; }
  bool is_dense() const override { return true; }

  Prediction predict(const Problem& problem) const override {
    const double P = problem.P;
    const double messages = dense_uses_ring(options(), problem.n, problem.P) ? 2 * (P - 1) : 2 * ceil_log2(problem.P);
    const double n = problem.n;
    const double values = 2 * n * (P - 1) / P;
    const double width = codec().lossless() ? sizeof(float) : sizeof(Bf16);
    const Cost expected = sequential(messages, width * values, 0, values);
    // Regions differ by one value when P does not divide n.
    return {expected, expected + Cost{.bytes = width * 2 * (P - 1), .values = 2 * (P - 1)}};
  }

 protected:
  void do_run(const Step& step, Outcome& out) override {
    const int P = step.comm.size();
    if (cuts_.empty()) {
      const Cuts regions = equal_cuts(step.n, P);
      cuts_.assign(regions.begin(), regions.end());
    }
    codec().lossless() ? sum_floats(step, out) : sum_halves(step, out);
  }

 private:
  DenseRounds rounds_of(const Step& step) const {
    return dense_uses_ring(options(), step.n, step.comm.size()) ? DenseRounds::ring : DenseRounds::halving;
  }

  void sum_floats(const Step& step, Outcome& out) {
    out.dense_update.resize(step.n);
    step.device.read(step.mine.dense, out.dense_update.data());
    const DenseRounds rounds = rounds_of(step);
    dense_reduce_scatter(step.comm, out.dense_update, cuts_, rounds, work_);
    const auto bytes = std::as_writable_bytes(std::span(out.dense_update));
    dense_allgather(step.comm, bytes, sizeof(float), cuts_, rounds, work_);
  }

  // `sums` keeps the rounding error of each partial sum that was sent: at the end it holds n errors.
  void sum_halves(const Step& step, Outcome& out) {
    Uninitialised<float>& sums = out.dense_returned;
    sums.resize(step.n);
    step.device.read(step.mine.dense, sums.data());
    halves_.resize(step.n);
    const DenseRounds rounds = rounds_of(step);
    dense_reduce_scatter(step.comm, sums, cuts_, rounds, work_, kBf16);
    split_own(step.comm.rank(), sums);
    dense_allgather(step.comm, std::as_writable_bytes(std::span(halves_)), sizeof(Bf16), cuts_, rounds, work_);
    out.dense_update.resize(step.n);
    check_arrived(
        kernels().codings.from_bf16(std::as_bytes(std::span(halves_)).data(), step.n, out.dense_update.data()));
  }

  void split_own(int rank, std::span<float> sums) {
    const auto r = static_cast<std::size_t>(rank);
    const std::size_t width = cuts_[r + 1] - cuts_[r];
    split(sums.subspan(cuts_[r], width), std::as_writable_bytes(std::span(halves_).subspan(cuts_[r], width)));
  }

  std::vector<std::size_t> cuts_;
  Uninitialised<Bf16> halves_;  // of the update, on the wire
};

}  // namespace

bool dense_uses_ring(const AllreduceOptions& options, double n, int P) {
  return options.dense == DenseSchedule::ring || (options.dense == DenseSchedule::automatic && n / P >= kRingRegion);
}

std::unique_ptr<Allreduce> make_dense(const AllreduceOptions& options) { return std::make_unique<Dense>(options); }

}  // namespace oktopk
