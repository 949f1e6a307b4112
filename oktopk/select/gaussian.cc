// SPDX-License-Identifier: Apache-2.0
// gaussian: Gaussiank (Shi et al., arXiv 1911.08772). Fits a normal distribution to the accumulator and takes the
// threshold from its quantile at 1 - k/n; then at most three multiplicative corrections if the count is outside [2k/3,
// 4k/3]. O(n), no sort. Real accumulators have other tails, and error feedback truncates them at the last threshold, so
// the count can be far from k.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numbers>

#include "oktopk/select/selector.h"

namespace oktopk {
namespace {

constexpr int kCorrections = 3;
constexpr float kLower = 0.5F;  // factor when too few were selected
constexpr float kRaise = 1.5F;  // factor when too many were

class Gaussian final : public Selector {
 public:
  std::string_view name() const override { return "gaussian"; }

 protected:
  void do_select(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out) override {
    device.accumulate(in);
    float threshold = fitted_threshold(device, in.acc, k);
    for (int round = 0;; ++round) {
      out.clear();
      device.select_at_least(in.acc, 0, threshold, out);
      const bool too_few = 3 * out.size() < 2 * k;
      const bool too_many = 3 * out.size() > 4 * k;
      if (round == kCorrections || (!too_few && !too_many)) break;
      threshold *= too_few ? kLower : kRaise;
    }
    // If the fitted threshold selects nothing, the residual would never drain.
    if (out.empty()) select_exact(device, {.acc = in.acc}, k, out);
  }

 private:
  static float fitted_threshold(const Device& device, std::span<const float> acc, std::size_t k) {
    const Moments fit = device.moments(acc);
    const double tail = static_cast<double>(k) / static_cast<double>(acc.size());
    // Half of the k largest magnitudes lie in each tail. -quantile(tail/2) keeps the precision that 1 - tail/2 would
    // lose.
    const double deviations = tail >= 1 ? 0 : -normal_quantile(tail / 2);
    const double fitted = std::fabs(fit.mean) + deviations * fit.standard_deviation;
    // Values that are not finite make the fit so, and pass any threshold.
    constexpr double kMost = std::numeric_limits<float>::max();
    return static_cast<float>(fitted <= kMost ? fitted : kMost);
  }
};

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

}  // namespace

std::unique_ptr<Selector> make_gaussian(const SelectorOptions& /*options*/) { return std::make_unique<Gaussian>(); }

double normal_quantile(double p) {
  double low = -40;
  double high = 40;
  for (int i = 0; i < 200 && high - low > 1e-12; ++i) {
    const double middle = 0.5 * (low + high);
    (normal_cdf(middle) < p ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

}  // namespace oktopk
