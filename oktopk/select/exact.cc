// SPDX-License-Identifier: Apache-2.0
#include "oktopk/select/exact.h"

#include "oktopk/sparse/top.h"

namespace oktopk {

void select_exact(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out) {
  if (!in.gradient.empty()) device.accumulate(in.acc, in.gradient, in.scale);
  MagnitudeHistogram bins{};
  device.magnitude_histogram(in.acc, bins);
  std::size_t bin = kMagnitudeBins - 1;
  for (std::uint64_t above = bins[bin]; above < k && bin > 0; above += bins[bin]) --bin;
  out.clear();
  device.select_at_least(in.acc, 0, magnitude_bin_edge(bin), out);
  keep_largest(out, k);
}

}  // namespace oktopk
