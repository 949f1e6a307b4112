// SPDX-License-Identifier: Apache-2.0
// exact: the k largest magnitudes; ties go to the smaller index. A sample gives a lower bound that a little more than k
// elements reach; one pass collects these candidates, and only they are compared with each other. If the sample was
// wrong, and fewer than k came, the histogram of all magnitudes gives the bound.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>

#include "oktopk/select/sample.h"
#include "oktopk/select/selector.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

// For fewer elements, or at a higher density, a sample saves nothing.
constexpr std::size_t kFewElements = std::size_t{1} << 14;
constexpr std::size_t kDenseFraction = 5;  // k > n / 5
// The bound lies this many deviations below the estimate: more give more candidates, fewer a second pass more often.
constexpr double kDeviations = 3;

// Three passes, whatever the data.
void select_by_histogram(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out) {
  device.accumulate(in);
  out.clear();
  select_bins(device, in.acc, 0, k, out);
  keep_largest(out, k);
}

// A magnitude that almost surely k elements reach, and not many more.
float bound_by_sample(const Device& device, const Accumulation& in, std::size_t k) {
  // Kept per thread for its memory alone: every draw starts anew.
  static thread_local MagnitudeSample sample;
  sample.draw(device, in, in.acc.size() >> 10U, 0);
  const double expected = sample.share(static_cast<double>(k));
  const float middle = sample.largest(static_cast<std::size_t>(expected));
  const double margin = kDeviations * std::max(1.0, sample.uncertainty(middle));
  return sample.largest(static_cast<std::size_t>(std::ceil(expected + margin)));
}

class Exact final : public Selector {
 public:
  std::string_view name() const override { return "exact"; }

 protected:
  void do_select(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out) override {
    select_exact(device, in, k, out);
  }
};

}  // namespace

std::unique_ptr<Selector> make_exact(const SelectorOptions& /*options*/) { return std::make_unique<Exact>(); }

void select_bins(const Device& device, std::span<const float> x, Index base, std::size_t count, SparseVector& out) {
  MagnitudeHistogram bins{};
  device.magnitude_histogram(x, bins);
  std::size_t bin = magnitude_bin(std::numeric_limits<float>::max());  // a threshold must be finite
  std::uint64_t above = std::accumulate(bins.begin() + static_cast<std::ptrdiff_t>(bin), bins.end(), std::uint64_t{0});
  for (; above < count && bin > 0; above += bins[bin]) --bin;
  device.select_at_least(x, base, magnitude_bin_edge(bin), out);
}

void select_exact(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out) {
  const std::size_t n = in.acc.size();
  if (n < kFewElements || k > n / kDenseFraction) return select_by_histogram(device, in, k, out);
  const float bound = bound_by_sample(device, in, k);
  const std::size_t reached = device.accumulate_select(in, bound, out, k);
  if (reached < k && bound > 0) select_by_histogram(device, {.acc = in.acc}, k, out);
}

float select_for_threshold(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out) {
  select_exact(device, in, k, out);
  const float smallest = smallest_magnitude(out.val);
  return out.size() == k && std::isfinite(smallest) ? smallest : 0.0F;
}

}  // namespace oktopk
