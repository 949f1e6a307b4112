// SPDX-License-Identifier: Apache-2.0
// gtopk: merge along a binomial tree, keeping only the k largest at every node, then broadcast the root's k (Shi et
// al., ICDCS'19). Any P.
//
// COST: 2 ceil(log2 P) messages and 4k ceil(log2 P) words on the root's path, plus frames. A node prunes partial sums
// that no other rank holds. The published residual rule (a rank keeps the entries that are not in the result) loses
// such a sum whenever its index survives elsewhere; holder keeps does not.
#include <algorithm>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/parts/gather.h"
#include "oktopk/sparse/sum.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

class GTopk final : public Allreduce {
 public:
  using Allreduce::Allreduce;
  std::string_view name() const override { return "gtopk"; }

  Prediction predict(const Problem& problem) const override {
    const double rounds = 2 * ceil_log2(problem.P);
    const double frame = expected_frame_bytes(codec(), problem.k, problem.n);
    // Half of the rounds merge two lists and prune the result.
    const Cost cost = sequential(rounds, rounds * frame, (2 * rounds + 1) * problem.k);
    return {cost, cost};
  }

 protected:
  void do_run(const Step& step, Outcome& out) override {
    const FrameSpec spec = step.frame({0, step.n});
    buffer_.resize(max_frame_bytes(spec.codec, step.k, step.n));
    kept_.clear();
    kept_.append(step.mine.selection);
    keep_largest(kept_, step.k, &out.dropped);
    merge_up(step, spec, out);
    if (step.comm.rank() == 0) {
      encode(spec, out);
      std::copy(frame_.begin(), frame_.end(), buffer_.begin());
    }
    const std::size_t size = broadcast_up_to(step.comm, 0, buffer_, frame_.size());
    decode_frame(expect_frame(std::span(buffer_).first(size), spec, 0), out.update);
  }

 private:
  // In the round of stride s, rank r with r mod 2s = s hands its k to r - s and is done.
  void merge_up(const Step& step, const FrameSpec& spec, Outcome& out) {
    const int rank = step.comm.rank();
    for (int stride = 1; stride < step.P(); stride *= 2) {
      if (rank % (2 * stride) == stride) {
        encode(spec, out);
        const Send send{rank - stride, frame_};
        step.comm.exchange({&send, 1}, {});
        return;
      }
      if (rank + stride >= step.P()) continue;
      Recv recv{rank + stride, buffer_};
      step.comm.exchange({}, {&recv, 1});
      arrived_.clear();
      decode_frame(expect_frame(std::span(buffer_).first(recv.size), spec, recv.peer), arrived_);
      const CooView parts[] = {kept_, arrived_};
      sum(parts, spec.range, merged_);
      std::swap(kept_, merged_);
      keep_largest(kept_, step.k, &out.dropped);
    }
  }

  void encode(const FrameSpec& spec, Outcome& out) {
    frame_.clear();
    encode_frame(spec, kept_, frame_, error_sink(spec.codec, out.returned));
  }

  Bytes frame_;
  Bytes buffer_;
  SparseVector kept_;
  SparseVector arrived_;
  SparseVector merged_;
};

}  // namespace

std::unique_ptr<Allreduce> make_gtopk(const AllreduceOptions& options) { return std::make_unique<GTopk>(options); }

}  // namespace oktopk
