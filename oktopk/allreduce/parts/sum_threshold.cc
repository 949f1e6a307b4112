// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/sum_threshold.h"

#include <algorithm>
#include <cmath>

#include "oktopk/base/error.h"
#include "oktopk/sparse/tail.h"

namespace oktopk {
namespace {

constexpr float kPublishedStep = 1.008F;
constexpr double kGain = 0.25;              // of the Newton step
constexpr double kMostTrend = 0.5;          // of ln(threshold) per step; beyond it is a jump
constexpr double kBand = 0.25;              // of k: a count that is further off is refuted
constexpr double kNear = 0.15;              // of k: a planned evaluation was not needed
constexpr std::uint64_t kMostStretch = 16;  // of tau'

double distance(std::uint64_t reached, std::size_t k) {
  return std::fabs(static_cast<double>(reached) - static_cast<double>(k));
}

}  // namespace

double SumThreshold::most_gathered(double k) { return k + kBand * k + count_noise(k); }

bool SumThreshold::is_unknown(std::uint64_t count, std::size_t k) const {
  if (!known_ || k != k_) return true;
  return rule_ != ThresholdRule::steered && count % tau_prime_ == 0;
}

bool SumThreshold::is_refuted(std::uint64_t count, std::uint64_t reached, std::size_t k) {
  if (rule_ != ThresholdRule::steered) return false;
  const double off = distance(reached, k);
  const bool is_due = count >= evaluated_ + interval_;
  if (off > kBand * static_cast<double>(k) + count_noise(static_cast<double>(k))) {
    interval_ = std::max<std::uint64_t>(1, interval_ / 2);
    return true;
  }
  if (!is_due) return false;
  if (off > kNear * static_cast<double>(k) + count_noise(static_cast<double>(k))) {
    interval_ = std::max<std::uint64_t>(1, interval_ / 2);
    return true;
  }
  interval_ = std::min(2 * interval_, kMostStretch * tau_prime_);
  evaluated_ = count;  // it would have changed next to nothing
  exact_ = value_;
  return false;
}

void SumThreshold::set(float value, std::uint64_t available, std::uint64_t count, std::size_t k) {
  // Residuals that grow or drain, or a learning rate that falls, move all sums alike for many
  // steps.
  trend_ = 0;
  if (known_ && value > 0 && count > evaluated_) {
    const double change = std::log(static_cast<double>(value) / exact_);
    const double trend = change / static_cast<double>(count - evaluated_);
    if (std::fabs(trend) <= kMostTrend) trend_ = trend;
  }
  off_ = 0;
  exact_ = value_ = value;
  if (rule_ == ThresholdRule::steered) value_ *= static_cast<float>(std::exp(trend_));
  known_ = available >= k && value > 0;
  k_ = k;
  evaluated_ = count;
}

void SumThreshold::observe(std::span<const float> gathered, std::size_t k) {
  const auto reached = static_cast<double>(gathered.size());
  const auto target = static_cast<double>(k);
  if (rule_ == ThresholdRule::published) {
    if (3 * reached < 2 * target) value_ /= kPublishedStep;
    if (3 * reached > 4 * target) value_ *= kPublishedStep;
  }
  if (rule_ != ThresholdRule::steered || reached == 0) return;
  // Sums that one step leaves come in the next: the mean of two counts says more than the last one.
  const double off = std::log(reached / target);
  const double correction = kGain * steering_slope(gathered, value_) * (off + off_) / 2;
  value_ *= static_cast<float>(std::exp(trend_ + correction));
  off_ = off;
}

void SumThreshold::save(StateWriter& state) const {
  state.put(value_);
  state.put(exact_);
  state.put(trend_);
  state.put(off_);
  state.put(known_);
  state.put(k_);
  state.put(evaluated_);
  state.put(interval_);
}

void SumThreshold::load(StateReader& state) {
  value_ = state.take_finite<float>("the global threshold", 0);
  exact_ = state.take_finite<float>("the global threshold", 0);
  trend_ = state.take_finite<double>("the threshold's trend");
  off_ = state.take_finite<double>("the threshold's last deviation");
  known_ = state.take<bool>();
  k_ = state.take<std::uint64_t>();
  evaluated_ = state.take<std::uint64_t>();
  interval_ = state.take<std::uint64_t>();
  require(interval_ >= 1, "state: ", interval_, " steps between two evaluations of a threshold");
}

}  // namespace oktopk
