// SPDX-License-Identifier: Apache-2.0
// Gaussiank (Shi et al., arXiv 1911.08772): fit a normal distribution to the accumulator and take
// the threshold from its quantile at 1 - k/n; then at most three multiplicative corrections when
// the count is outside [2k/3, 4k/3]. O(n), no sort. Real accumulators have other tails, and error
// feedback truncates them at the last threshold, so the count can be far from k; when nothing at
// all passes, the selection is exact.
#pragma once

#include "oktopk/select/selector.h"

namespace oktopk {

class GaussianSelector final : public Selector {
 public:
  std::string_view name() const override { return "gaussian"; }

 protected:
  void do_select(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out) override;
};

// x with P(Z <= x) = p for a standard normal Z, by bisection of erfc; |error| < 1e-11.
// REQUIRES: 0 < p < 1.
double normal_quantile(double p);

}  // namespace oktopk
