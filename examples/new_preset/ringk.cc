// SPDX-License-Identifier: Apache-2.0
// ringk: every rank's selection travels once around a ring; every rank adds up all of them. The preset of the tutorial
// docs/tutorials/new_allreduce.md, which quotes this file; tests/allreduce/ringk_test.cc tests it.
//
// COST: P - 1 messages, all to the same neighbour, and 2k(P-1) words + (P-1) frames: the words of topka, in more rounds
// but over one link per rank.
#include "examples/new_preset/ringk.h"

#include <vector>

#include "oktopk/allreduce/parts/gather.h"
#include "oktopk/sparse/sum.h"

namespace oktopk {
namespace {

class RingK final : public Allreduce {
 public:
  using Allreduce::Allreduce;
  std::string_view name() const override { return "ringk"; }

  Prediction predict(const Problem& problem) const override {
    const double hops = problem.P - 1;
    const double frame = expected_frame_bytes(codec(), problem.k, problem.n);
    const Cost cost = sequential(hops, hops * frame, hops * problem.k);
    return {cost, cost};
  }

 protected:
  void do_run(const Step& step, Outcome& out) override {
    const FrameSpec spec = step.frame({0, step.n});
    frames_.resize(static_cast<std::size_t>(step.P()));
    Bytes& mine = frame(step.comm.rank());
    mine.clear();
    encode_frame(spec, step.mine.selection, mine, error_sink(step.codec, out.returned));
    pass_around(step);
    add_up(spec, step, out.update);
  }

 private:
  // In hop h a rank sends the frame that it got in hop h - 1, its own at first, to the next rank.
  void pass_around(const Step& step) {
    const int P = step.P();
    const int rank = step.comm.rank();
    const std::size_t most = max_frame_bytes(step.codec, max_selection(step.k), step.n);
    for (int hop = 1; hop < P; ++hop) {
      Bytes& arriving = frame((rank - hop + P) % P);
      arriving.resize(most);
      const Send send{(rank + 1) % P, frame((rank - hop + 1 + P) % P)};
      Recv recv{(rank - 1 + P) % P, arriving};
      step.comm.exchange({&send, 1}, {&recv, 1});
      arriving.resize(recv.size);
    }
  }

  // Every rank decodes all frames, its own included, and adds them in rank order: all ranks get the same bits.
  void add_up(const FrameSpec& spec, const Step& step, SparseVector& update) {
    parts_.resize(frames_.size());
    for (int r = 0; r < step.P(); ++r) {
      SparseVector& part = parts_[static_cast<std::size_t>(r)];
      part.clear();
      decode_frame(expect_frame(frame(r), spec, r), part);
    }
    views_.assign(parts_.begin(), parts_.end());
    sum(views_, {0, step.n}, update);
  }

  Bytes& frame(int r) { return frames_[static_cast<std::size_t>(r)]; }

  std::vector<Bytes> frames_;  // by the rank that made them
  std::vector<SparseVector> parts_;
  std::vector<CooView> views_;
};

}  // namespace

std::unique_ptr<Allreduce> make_ringk(const AllreduceOptions& options) { return std::make_unique<RingK>(options); }

}  // namespace oktopk
