// SPDX-License-Identifier: Apache-2.0
// What topkdsa, topka2a and spardl share: regions of equal width, a reduce-scatter of the
// selections into them, and an allgather of one frame per region, all of which is applied.
#pragma once

#include <functional>
#include <vector>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/parts/frames.h"
#include "oktopk/allreduce/parts/reduce_scatter.h"

namespace oktopk {

class EqualRegions : public Allreduce {
 public:
  using Allreduce::Allreduce;

 protected:
  // Leaves the sums of this rank's region in sums(). skips: of P ranks. quota 0: nothing is pruned.
  void scatter(const Step& step, Skips (*skips)(int P), std::size_t quota, Outcome& out);
  CooView sums() const { return scatter_.region(); }
  Range mine(const Step& step) const { return region(cuts_, step.comm.rank()); }
  FrameSpec frame_spec(const Step& step) const { return {options().codec, mine(step), step.tag}; }

  // This rank's sums as a dense block.
  std::span<const float> dense_sums(const Step& step);

  // Gathers everyone's frame_ into the update. capacity(r, width of region r): the most bytes that
  // rank r's frame may have.
  void gather(const Step& step, const std::function<std::size_t(int, std::size_t)>& capacity, Outcome& out);

  // The gather's share of predict(), for frames of so many bytes, entries or values.
  static Cost predict_gather(int P, double frame, double entries, double values);

  Bytes frame_;

 private:
  Cuts cuts_;
  SparseReduceScatter scatter_;
  FrameGather gather_;
  std::vector<float> dense_;
  std::vector<std::size_t> capacities_;
};

}  // namespace oktopk
