// SPDX-License-Identifier: Apache-2.0
#include "oktopk/select/reused.h"

#include <cmath>

#include "oktopk/base/error.h"
#include "oktopk/sparse/top.h"

namespace oktopk {

ReusedSelector::ReusedSelector(int tau_prime) : tau_prime_(tau_prime) {
  require(tau_prime >= 1, "reused selector: tau' = ", tau_prime, ", but it must be at least 1");
}

void ReusedSelector::save(StateWriter& state) const {
  state.put(step_);
  state.put(std::uint64_t{k_});
  state.put(threshold_);
}

void ReusedSelector::load(StateReader& state) {
  step_ = state.take<int>();
  k_ = state.take<std::uint64_t>();
  threshold_ = state.take_finite<float>("the local threshold", 0);
}

void ReusedSelector::do_select(const Device& device, const Accumulation& in, std::size_t k,
                               SparseVector& out) {
  const bool evaluate = step_ == 0 || k != k_;
  step_ = (step_ + 1) % tau_prime_;
  k_ = k;
  if (evaluate) {
    select_exact(device, in, k, out);
    const float smallest = smallest_magnitude(out.val);
    threshold_ = std::isfinite(smallest) ? smallest : 0.0F;  // what is not finite will be refused
  } else {
    device.accumulate_select(in, threshold_, out);
  }
}

}  // namespace oktopk
