// SPDX-License-Identifier: Apache-2.0
#include "oktopk/select/controlled.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

constexpr double kAim = 1.1;          // of k
constexpr double kGain = 0.4;         // of the Newton step
constexpr double kMaxLogRatio = 1.5;  // clamp of ln(count/aim)
constexpr double kSmoothing = 0.2;    // of the slope
constexpr double kSampleHits = 200;   // expected entries above the threshold in the sample
constexpr double kSampleTolerance = 0.25;
constexpr double kTooFew = 0.67;  // of k: repeat the pass

// Hill's estimator: the mean of ln(|v|/threshold).
double tail_slope(const SparseVector& selected, float threshold) {
  double sum = 0;
  for (const float v : selected.val) sum += std::log(std::fabs(v) / threshold);
  return selected.empty() ? 0.0 : sum / static_cast<double>(selected.size());
}

}  // namespace

void ControlledSelector::do_select(const Device& device, const Accumulation& in, std::size_t k,
                                   SparseVector& out) {
  const double aim = std::min(kAim * static_cast<double>(k), static_cast<double>(in.acc.size()));
  if (threshold_ <= 0) return restart(device, in, k, out);
  check_by_sample(device, in, aim);
  if (in.gradient.empty()) {
    device.select_at_least(in.acc, 0, threshold_, out);
  } else {
    device.accumulate_select(in.acc, in.gradient, in.scale, threshold_, out);
  }
  const Accumulation done{.acc = in.acc};
  if (static_cast<double>(out.size()) < kTooFew * static_cast<double>(k)) {
    const double ratio = std::max(1.0, static_cast<double>(out.size())) / aim;
    threshold_ *= static_cast<float>(std::exp(std::max(slope_, 0.05) * std::log(ratio)));
    out.clear();
    device.select_at_least(in.acc, 0, threshold_, out);
    if (static_cast<double>(out.size()) < kTooFew * static_cast<double>(k))
      return restart(device, done, k, out);
  }
  steer(out, aim);
  keep_largest(out, k);
}

void ControlledSelector::restart(const Device& device, const Accumulation& in, std::size_t k,
                                 SparseVector& out) {
  const std::size_t aim =
      std::min(in.acc.size(), static_cast<std::size_t>(std::ceil(kAim * static_cast<double>(k))));
  select_exact(device, in, aim, out);
  threshold_ = out.size() < aim ? 0.0F : kth_magnitude(out.val, aim);
  slope_ = threshold_ > 0 ? tail_slope(out, threshold_) : 0.0;
  keep_largest(out, k);
}

void ControlledSelector::save(StateWriter& state) const {
  state.put(threshold_);
  state.put(slope_);
  state.put(std::uint64_t{offset_});
}

void ControlledSelector::load(StateReader& state) {
  threshold_ = state.take<float>();
  slope_ = state.take<double>();
  offset_ = state.take<std::uint64_t>();
}

void ControlledSelector::check_by_sample(const Device& device, const Accumulation& in, double aim) {
  const auto n = static_cast<double>(in.acc.size());
  const auto stride = static_cast<std::size_t>(std::max(1.0, aim / kSampleHits));
  device.sample_magnitudes(in.acc, in.gradient, in.scale, offset_ % stride, stride, sample_);
  ++offset_;
  if (sample_.empty()) return;
  const auto size = static_cast<double>(sample_.size());
  const float threshold = threshold_;
  const auto hits = static_cast<double>(std::count_if(
      sample_.begin(), sample_.end(), [threshold](float m) { return m >= threshold; }));
  const double sigma = 1 / std::sqrt(aim * size / n);
  const double deviation = std::log(std::max(hits, 0.5) * n / (size * aim));
  if (std::fabs(deviation) <= std::max(3 * sigma, kSampleTolerance)) return;
  const auto rank = std::min(sample_.size() - 1, static_cast<std::size_t>(aim * size / n));
  const auto quantile = sample_.begin() + static_cast<std::ptrdiff_t>(rank);
  std::nth_element(sample_.begin(), quantile, sample_.end(), std::greater<>());
  if (*quantile > 0) threshold_ = *quantile;
}

void ControlledSelector::steer(const SparseVector& selected, double aim) {
  slope_ += kSmoothing * (tail_slope(selected, threshold_) - slope_);
  const double ratio = std::log(std::max(1.0, static_cast<double>(selected.size())) / aim);
  threshold_ *=
      static_cast<float>(std::exp(kGain * slope_ * std::clamp(ratio, -kMaxLogRatio, kMaxLogRatio)));
}

}  // namespace oktopk
