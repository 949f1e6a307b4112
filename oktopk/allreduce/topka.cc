// SPDX-License-Identifier: Apache-2.0
// topka: every rank gathers every rank's selection and adds them up; the union is applied.
// COST: ceil(log2 P) messages, 2k(P-1) words + (P-1) frames. The words grow with P: beyond P = n/k they exceed dense.
//
// gaussiank: the same exchange for selections of unequal size, so that a size exchange comes first (2 ceil(log2 P)
// messages), as published with the Gaussian selector.
#include <algorithm>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/parts/gather.h"
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
    const double frame = expected_frame_bytes(codec(), problem.k, problem.n);
    Cost cost = ShareGather::cost(problem.P, frame, problem.k);
    if (sizes_first_) cost += sizes_cost(problem.P);
    return {cost, cost};
  }

 protected:
  void do_run(const Step& step, Outcome& out) override {
    Bytes& mine = gather_.begin();
    encode_frame(step.frame({0, step.n}), step.mine.selection, mine, error_sink(step.codec, out.returned));
    if (sizes_first_) allgather_sizes(step.comm, {step.mine.selection.size(), mine.size()}, sizes_, work_);
    const std::size_t most = max_frame_bytes(step.codec, max_selection(step.k), step.n);
    const auto capacity = [&](int r, std::size_t) {
      return sizes_first_ ? std::min<std::size_t>(most, sizes_[static_cast<std::size_t>(r)].bytes) : most;
    };
    gather_.run(step, {}, capacity);
    parts_.resize(static_cast<std::size_t>(step.P()));
    for (int r = 0; r < step.P(); ++r) {
      SparseVector& part = parts_[static_cast<std::size_t>(r)];
      part.clear();
      decode_frame(gather_.open(step, r), part);
    }
    views_.assign(parts_.begin(), parts_.end());
    sum(views_, {0, step.n}, out.update);
  }

 private:
  std::string_view name_;
  bool sizes_first_;
  std::vector<Sizes> sizes_;
  ShareGather gather_;
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
