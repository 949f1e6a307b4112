// SPDX-License-Identifier: Apache-2.0
#include "oktopk/select/quota.h"

#include <limits>

#include "oktopk/sparse/cuts.h"

namespace oktopk {

void QuotaSelector::do_select(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out) {
  const auto n = static_cast<Index>(in.acc.size());
  if (cuts_.empty() || cuts_.back() != n) cuts_ = equal_cuts(n, P_);
  const auto P = static_cast<std::size_t>(P_);
  // Regions without a turn are not looked at: what is not finite must be found here.
  device.accumulate_select(in, std::numeric_limits<float>::max(), out);
  if (device.first_nonfinite(out.val) < out.size()) return;
  out.clear();
  for (std::size_t r = 0; r < P; ++r) {
    const std::size_t turn = (r + step_) % P;
    const std::size_t quota = (turn + 1) * k / P - turn * k / P;
    const Range range = region(cuts_, static_cast<int>(r));
    if (quota == 0 || range.width() == 0) continue;
    select_exact(device, {.acc = in.acc.subspan(range.begin, range.width())}, quota, region_);
    for (Index& i : region_.idx) i += range.begin;
    out.append(region_);
  }
  ++step_;
}

}  // namespace oktopk
