// SPDX-License-Identifier: Apache-2.0
#include "oktopk/select/controlled.h"

#include <algorithm>
#include <cmath>

#include "oktopk/sparse/tail.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

constexpr double kAim = 1.1;          // of k
constexpr double kGain = 0.4;         // of the Newton step
constexpr double kMaxLogRatio = 1.5;  // clamp of ln(count/aim)
constexpr double kSmoothing = 0.2;    // of the slope
constexpr double kSampleHits = 200;   // expected entries above the threshold in the sample
constexpr double kSampleTolerance = 0.25;
constexpr double kSampleDeviations = 3;
constexpr double kTooFew = 0.67;  // of k: repeat the pass

}  // namespace

void ControlledSelector::do_select(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out) {
  const double aim = std::min(kAim * static_cast<double>(k), static_cast<double>(in.acc.size()));
  if (threshold_ <= 0) return restart(device, in, k, out);
  check_by_sample(device, in, aim);
  device.accumulate_select(in, threshold_, out);
  const Accumulation done{.acc = in.acc};
  if (static_cast<double>(out.size()) < kTooFew * static_cast<double>(k)) {
    const double ratio = std::max(1.0, static_cast<double>(out.size())) / aim;
    threshold_ *= static_cast<float>(std::exp(std::max(slope_, 0.05) * std::log(ratio)));
    out.clear();
    device.select_at_least(in.acc, 0, threshold_, out);
    if (static_cast<double>(out.size()) < kTooFew * static_cast<double>(k)) return restart(device, done, k, out);
  }
  steer(out, aim);
  keep_largest(out, k);
}

void ControlledSelector::restart(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out) {
  const std::size_t aim = std::min(in.acc.size(), static_cast<std::size_t>(std::ceil(kAim * static_cast<double>(k))));
  select_exact(device, in, aim, out);
  const float smallest = smallest_magnitude(out.val);
  threshold_ = out.size() == aim && std::isfinite(smallest) ? smallest : 0.0F;
  slope_ = threshold_ > 0 ? tail_slope(out.val, threshold_) : 0.0;
  keep_largest(out, k);
}

void ControlledSelector::save(StateWriter& state) const {
  state.put(threshold_);
  state.put(slope_);
  state.put(std::uint64_t{offset_});
}

void ControlledSelector::load(StateReader& state) {
  threshold_ = state.take_finite<float>("the local threshold", 0);
  slope_ = state.take_finite<double>("the slope of the magnitudes");
  offset_ = state.take<std::uint64_t>();
}

void ControlledSelector::check_by_sample(const Device& device, const Accumulation& in, double aim) {
  const auto n = static_cast<double>(in.acc.size());
  const double clusters = kSampleHits * n / (aim * MagnitudeSample::kCluster);
  sample_.draw(device, in, static_cast<std::size_t>(clusters), offset_++);
  if (sample_.size() == 0) return;
  const double expected = sample_.share(aim);
  const auto hits = static_cast<double>(sample_.count_at_least(threshold_));
  const double deviation = std::fabs(std::log(std::max(hits, 0.5) / expected));
  const double sigma = std::max(1 / std::sqrt(expected), sample_.uncertainty(threshold_) / std::max(hits, 1.0));
  if (deviation <= std::max(kSampleDeviations * sigma, kSampleTolerance)) return;
  const float quantile = sample_.largest(static_cast<std::size_t>(expected));
  if (quantile > 0) threshold_ = quantile;
}

void ControlledSelector::steer(const SparseVector& selected, double aim) {
  slope_ += kSmoothing * (tail_slope(selected.val, threshold_) - slope_);
  const double ratio = std::log(std::max(1.0, static_cast<double>(selected.size())) / aim);
  threshold_ *= static_cast<float>(std::exp(kGain * slope_ * std::clamp(ratio, -kMaxLogRatio, kMaxLogRatio)));
}

}  // namespace oktopk
