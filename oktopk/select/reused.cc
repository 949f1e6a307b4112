// SPDX-License-Identifier: Apache-2.0
#include "oktopk/select/reused.h"

#include <cmath>

#include "oktopk/base/error.h"
#include "oktopk/sparse/top.h"

namespace oktopk {

namespace {

constexpr float kStep = 1.012F;
constexpr float kGuard = 1.03F;
constexpr int kGuards = 5;

}  // namespace

ReusedSelector::ReusedSelector(int tau_prime, bool follows_counts)
    : tau_prime_(tau_prime), follows_counts_(follows_counts) {
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

void ReusedSelector::do_select(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out) {
  const bool evaluate = step_ == 0 || k != k_ || threshold_ == 0;
  step_ = (step_ + 1) % tau_prime_;
  k_ = k;
  if (evaluate) {
    select_exact(device, in, k, out);
    const float smallest = smallest_magnitude(out.val);
    // Values that are not finite will be refused.
    threshold_ = out.size() == k && std::isfinite(smallest) ? smallest : 0.0F;
  } else {
    device.accumulate_select(in, threshold_, out);
    if (follows_counts_) follow(out, k);
  }
}

void ReusedSelector::follow(SparseVector& out, std::size_t k) {
  if (3 * out.size() < 2 * k) threshold_ /= kStep;
  if (4 * out.size() > 5 * k) threshold_ *= kStep;
  for (int i = 0; i < kGuards && 3 * out.size() > 4 * k; ++i) {
    threshold_ *= kGuard;
    keep_at_least(out, threshold_);
  }
}

}  // namespace oktopk
