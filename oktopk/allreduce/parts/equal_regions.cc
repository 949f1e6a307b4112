// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/equal_regions.h"

#include "oktopk/select/selector.h"

namespace oktopk {

void EqualRegions::scatter(const Step& step, Skips (*skips)(int P), std::size_t quota, Outcome& out) {
  if (cuts_.empty()) {
    cuts_ = equal_cuts(step.n, step.comm.size());
    scatter_.set_skips(skips(step.comm.size()));
  }
  scatter_.run(
      step.comm, step.mine.selection,
      {.cuts = cuts_, .codec = options().codec, .tag = step.tag, .limit = max_selection(step.k), .quota = quota},
      out.returned, out.dropped);
}

std::span<const float> EqualRegions::dense_sums(const Step& step) {
  dense_.assign(mine(step).width(), 0.0F);
  step.device.add_at(dense_, mine(step).begin, sums());
  return dense_;
}

void EqualRegions::gather(const Step& step, const std::function<std::size_t(int, std::size_t)>& capacity,
                          Outcome& out) {
  capacities_.clear();
  for (int r = 0; r < step.comm.size(); ++r) capacities_.push_back(capacity(r, region(cuts_, r).width()));
  gather_.run(step.comm, frame_, capacities_, work_);
  gather_.decode_all(cuts_, options().codec, step.tag, out.update);
}

Cost EqualRegions::predict_gather(int P, double frame, double entries, double values) {
  return sequential(ceil_log2(P), (P - 1) * gathered_bytes(frame), (P - 1) * entries, (P - 1) * values);
}

}  // namespace oktopk
