// SPDX-License-Identifier: Apache-2.0
// topka: every rank gathers every rank's selection and adds them up; the union is applied.
// COST: ceil(log2 P) messages, 2k(P-1) words + (P-1) frames. Grows with P: beyond P = n/k it moves
// more than dense.
//
// gaussiank: the same exchange for selections of unequal size, so a size exchange comes first
// (2 ceil(log2 P) messages), as published with the Gaussian selector.
#include <algorithm>

#include "oktopk/allreduce/algorithms.h"
#include "oktopk/allreduce/parts/frames.h"
#include "oktopk/select/selector.h"
#include "oktopk/sparse/sum.h"

namespace oktopk {
namespace {

class GatherAll final : public Allreduce {
 public:
  GatherAll(std::string_view name, bool sizes_first, const AllreduceOptions& options)
      : Allreduce(options), name_(name), sizes_first_(sizes_first) {}
  std::string_view name() const override { return name_; }
  bool promises_volume() const override { return !sizes_first_; }  // a fitted threshold controls nothing

  Prediction predict(const Problem& problem) const override {
    const double peers = problem.P - 1;
    const double frame = gathered_bytes(expected_frame_bytes(options().codec, problem.k, problem.n));
    const double L = ceil_log2(problem.P);
    Cost cost = sequential(L, peers * frame, peers * problem.k);
    if (sizes_first_) cost += sequential(L, peers * kSizesBytes);
    return {cost, cost};
  }

 protected:
  void do_run(const Step& step, Outcome& out) override {
    const auto P = static_cast<std::size_t>(step.comm.size());
    const FrameSpec spec{options().codec, {0, step.n}, step.tag};
    frame_.clear();
    encode_frame(spec, step.mine.selection, frame_, error_sink(options().codec, out.returned));
    capacities_.assign(P, max_frame_bytes(options().codec, max_selection(step.k), step.n));
    if (sizes_first_) {
      allgather_sizes(step.comm, {step.mine.selection.size(), frame_.size()}, sizes_, work_);
      for (std::size_t r = 0; r < P; ++r) capacities_[r] = std::min<std::size_t>(capacities_[r], sizes_[r].bytes);
    }
    gather_.run(step.comm, frame_, capacities_, work_);
    parts_.resize(P);
    views_.clear();
    for (std::size_t r = 0; r < P; ++r) {
      parts_[r].clear();
      gather_.decode(static_cast<int>(r), spec, parts_[r]);
      views_.push_back(parts_[r]);
    }
    sum(views_, spec.range, out.update);
  }

 private:
  std::string_view name_;
  bool sizes_first_;
  Bytes frame_;
  std::vector<std::size_t> capacities_;
  std::vector<Sizes> sizes_;
  FrameGather gather_;
  std::vector<SparseVector> parts_;
  std::vector<CooView> views_;
};

}  // namespace

std::unique_ptr<Allreduce> make_topka(const AllreduceOptions& options) {
  return std::make_unique<GatherAll>("topka", false, options);
}

std::unique_ptr<Allreduce> make_gaussiank(const AllreduceOptions& options) {
  return std::make_unique<GatherAll>("gaussiank", true, options);
}

}  // namespace oktopk
