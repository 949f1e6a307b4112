// SPDX-License-Identifier: Apache-2.0
#include "oktopk/select/quota.h"

#include "oktopk/sparse/cuts.h"

namespace oktopk {

void QuotaSelector::do_select(const Device& device, const Accumulation& in, std::size_t k,
                              SparseVector& out) {
  const Cuts cuts = equal_cuts(static_cast<Index>(in.acc.size()), P_);
  const auto P = static_cast<std::size_t>(P_);
  if (!in.gradient.empty()) device.accumulate(in.acc, in.gradient, in.scale);
  for (std::size_t r = 0; r < P; ++r) {
    const std::size_t turn = (r + step_) % P;
    const std::size_t quota = (turn + 1) * k / P - turn * k / P;
    const Range range = region(cuts, static_cast<int>(r));
    if (quota == 0 || range.width() == 0) continue;
    select_exact(device, {.acc = in.acc.subspan(range.begin, range.width())}, quota, region_);
    for (std::size_t i = 0; i < region_.size(); ++i)
      out.push_back(range.begin + region_.idx[i], region_.val[i]);
  }
  ++step_;
}

}  // namespace oktopk
