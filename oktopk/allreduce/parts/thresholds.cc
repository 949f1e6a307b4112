// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/thresholds.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include "oktopk/base/bytes.h"
#include "oktopk/base/error.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

// find_kth_sum: the 31 bits of a magnitude as five digits: half as many digits would take ten times the bytes.
constexpr std::array<unsigned, 5> kShifts = {24, 18, 12, 6, 0};
constexpr std::array<unsigned, 5> kWidths = {7, 6, 6, 6, 6};
constexpr std::size_t kMostValues = 128;  // of a digit

std::size_t values_of(std::size_t round) { return std::size_t{1} << kWidths[round]; }

std::uint32_t digit_of(std::uint32_t bits, std::size_t round) {
  return (bits >> kShifts[round]) & ((1U << kWidths[round]) - 1);
}

// SumThreshold.
constexpr float kPublishedStep = 1.008F;
constexpr double kGain = 0.25;              // of the Newton step
constexpr double kMostTrend = 0.5;          // of ln(threshold) per step; beyond it is a jump
constexpr double kBand = 0.25;              // of k: a count that is further off is refuted
constexpr double kNear = 0.15;              // of k: a planned evaluation was not needed
constexpr std::uint64_t kMostStretch = 16;  // of tau'

// GlobalThreshold. Changes of the mean local threshold, in units of BlockTally::kOctave.
constexpr std::int64_t kJump = 295;  // 0.2 nepers
constexpr std::int64_t kNotice = 7;  // 0.5%: less is noise
constexpr double kSlopeReach = 0.9;  // share of the entries for which the tail's slope is a good guide
constexpr double kOff = 0.2;         // of the aim: a count that is so much too small asks for a refresh

}  // namespace

KthSum find_kth_sum(Communicator& comm, std::span<const float> values, std::uint64_t k, Workspace& work) {
  Uninitialised<std::uint32_t> candidates;  // bits of the magnitudes that may be the k-th
  candidates.reserve(values.size());
  for (const float x : values)
    if (x != 0) candidates.push_back(magnitude_bits(x));
  KthSum kth;
  std::uint32_t prefix = 0;
  for (std::size_t round = 0; round < kShifts.size(); ++round) {
    std::array<std::uint32_t, kMostValues> counts{};
    for (const std::uint32_t bits : candidates) ++counts[digit_of(bits, round)];
    allreduce_small(comm, std::span<std::uint32_t>(counts).first(values_of(round)), Reduction::sum, work);
    if (round == 0) {
      kth.total = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
      if (kth.total == 0) return kth;
      k = std::min(k, kth.total);
    }
    // All ranks have the same counts, and so choose the same digit.
    std::size_t digit = values_of(round) - 1;
    while (kth.larger + counts[digit] < k) kth.larger += counts[digit--];
    prefix |= static_cast<std::uint32_t>(digit) << kShifts[round];
    std::erase_if(candidates, [&](std::uint32_t bits) { return digit_of(bits, round) != digit; });
  }
  kth.magnitude = std::bit_cast<float>(prefix);
  return kth;
}

Cost kth_sum_cost(int P) {
  const double L = ceil_log2(P);
  double bytes = 0;
  for (std::size_t round = 0; round < kShifts.size(); ++round)
    bytes += static_cast<double>(sizeof(std::uint32_t) * values_of(round) + kCheckBytes);
  return sequential(static_cast<double>(kShifts.size()) * L, L * bytes);
}

double SumThreshold::most_gathered(double k) { return k + kBand * k + count_noise(k); }

bool SumThreshold::is_unknown(std::uint64_t count, std::size_t k) const {
  if (!known_ || k != k_) return true;
  return rule_ != ThresholdRule::steered && count % tau_prime_ == 0;
}

bool SumThreshold::is_refuted(std::uint64_t count, std::uint64_t reached, std::size_t k) {
  if (rule_ != ThresholdRule::steered) return false;
  const bool is_due = count >= evaluated_ + interval_;
  const auto target = static_cast<double>(k);
  const double off = std::fabs(static_cast<double>(reached) - target);
  if (off > (is_due ? kNear : kBand) * target + count_noise(target)) {
    interval_ = std::max<std::uint64_t>(1, interval_ / 2);
    return true;
  }
  if (!is_due) return false;
  interval_ = std::min(2 * interval_, kMostStretch * tau_prime_);
  evaluated_ = count;  // the threshold is good: counts as an evaluation
  exact_ = value_;
  return false;
}

void SumThreshold::set(float value, std::uint64_t available, std::uint64_t count, std::size_t k) {
  // Residuals that grow or drain, or a learning rate that falls, move all sums alike for many steps.
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
  // A sum that one step leaves out is sent in the next, so the mean of two counts is steadier than the last count.
  const double off = std::log(reached / target);
  const double correction = kGain * steering_slope(gathered, value_) * (off + off_) / 2;
  value_ *= static_cast<float>(std::exp(trend_ + correction));
  off_ = off;
}

void SumThreshold::save(StateWriter& state) const {
  state.put(value_, exact_, trend_, off_, known_, k_, evaluated_, interval_);
}

void SumThreshold::load(StateReader& state) {
  value_ = state.take_finite<float>("the global threshold", 0);
  exact_ = state.take_finite<float>("the global threshold", 0);
  trend_ = state.take_finite<double>("the threshold's trend");
  off_ = state.take_finite<double>("the threshold's last deviation");
  state.take_to(known_, k_, evaluated_, interval_);
  require(interval_ >= 1, "state: ", interval_, " steps between two evaluations of a threshold");
}

double GlobalThreshold::most_gathered(double k) {
  const double aim = k * (1 + kMaxOvershoot / 1000.0) + 1;
  return aim * (1 + kOff) + count_noise(aim);
}

std::uint64_t GlobalThreshold::aim(std::size_t k) const {
  const std::uint64_t overshoot = std::clamp(2 * deviation_, kMinOvershoot, kMaxOvershoot);
  return k + (k * overshoot + 999) / 1000;
}

bool GlobalThreshold::follow(const BlockTally& summed, std::size_t k) {
  const auto other = static_cast<std::uint64_t>(k);
  if (10 * other > 11 * k_ || 11 * other < 10 * k_) known_ = false;
  k_ = other;
  if (summed.contributors == 0) return !known_;
  const std::int64_t mean = summed.log_threshold / std::int64_t{summed.contributors};
  const std::int64_t change = known_ ? mean - last_log_threshold_ : 0;
  if (std::abs(change) > kJump) known_ = false;
  if (known_ && std::abs(change) < kNotice) return false;
  // The threshold does not fall here: many entries wait just below it, and only observe() has their counts.
  if (change > 0)
    value_.value *=
        static_cast<float>(std::exp2(static_cast<double>(change) / static_cast<double>(BlockTally::kOctave)));
  last_log_threshold_ = mean;
  return !known_;
}

void GlobalThreshold::refresh(Communicator& comm, std::span<const float> mine, std::size_t k, Workspace& work) {
  const std::uint64_t target = aim(k);
  const KthSum kth = find_kth_sum(comm, mine, target, work);
  value_.value = kth.total <= target ? 0.0F : kth.magnitude;
  known_ = true;
}

void GlobalThreshold::observe(const Gathered& seen, std::size_t k) {
  const auto target = static_cast<double>(aim(k));
  const auto count = static_cast<double>(seen.values.size());
  if (value_.value == 0) {  // all sums were taken
    known_ = count <= target;
    return;
  }
  const double off = std::clamp((count - target) / target, -kOff, kOff);
  deviation_ = (7 * deviation_ + static_cast<std::uint64_t>(1000 * std::fabs(off)) + 4) / 8;
  if (seen.is_capped || count < (1 - kOff) * target - count_noise(target)) {
    known_ = false;
    return;
  }
  const auto arrivals = static_cast<double>(seen.near.arrivals);
  const auto carried = static_cast<double>(seen.remembered);
  if (arrivals + carried < target) {
    fall(seen.near, target - arrivals - carried);
  } else {
    // The next step is expected to have as many arrivals as this one, and the entries trimmed now. If the threshold
    // rises so far that `keep` of this step's entries pass, the same share of both passes.
    const double part = arrivals / count;
    const double keep = carried > 0 ? (target + count - carried) / (1 + part) : target / part;
    rise(seen.values, std::clamp(keep, 1.0, count));
  }
  resize_window(seen.near, k);
}

// Lowers the threshold so that `missing` more entries pass. Where the window holds fewer, the threshold falls to the
// end of the window, and the next window is wider.
void GlobalThreshold::fall(const NearTail& near, double missing) {
  double bins = 0;
  for (const std::uint64_t count : near.below) {
    const auto here = static_cast<double>(count);
    const double part = here > 0 ? std::min(missing / here, 1.0) : 1.0;
    bins += part;
    missing -= part * here;
    if (missing <= 0) break;
  }
  value_.value *= static_cast<float>(1 - value_.window * bins / NearTail::kBins);
  if (missing > 0) value_.window = std::min(kWidest, value_.window * 8);
}

// Raises the threshold so that `keep` of the entries pass: by the tail's slope, or exactly where `keep` is far below
// their number.
void GlobalThreshold::rise(std::span<const float> gathered, double keep) {
  const auto count = static_cast<double>(gathered.size());
  if (keep < kSlopeReach * count) {
    value_.value = kth_magnitude(gathered, static_cast<std::size_t>(keep));
  } else {
    const double slope = steering_slope(gathered, value_.value);
    value_.value *= static_cast<float>(std::exp(slope * std::log(count / keep)));
  }
}

// Keeps the window so wide that it holds some entries, but a small part of k.
void GlobalThreshold::resize_window(const NearTail& near, std::size_t k) {
  const std::uint64_t waiting = std::accumulate(near.below.begin(), near.below.end(), std::uint64_t{0});
  const auto count = static_cast<double>(waiting);
  const double some = std::max(static_cast<double>(k) / 64, count_noise(static_cast<double>(k)));
  if (count > 4 * some) value_.window = std::max(kNarrowest, value_.window / 2);
  if (count < some / 2) value_.window = std::min(kWidest, value_.window * 2);
}

void GlobalThreshold::save(StateWriter& state) const {
  state.put(value_.value, value_.window, known_, k_, last_log_threshold_, deviation_);
}

void GlobalThreshold::load(StateReader& state) {
  value_.value = state.take_finite<float>("the global threshold", 0);
  value_.window = state.take_finite<float>("the threshold's window", kNarrowest);
  state.take_to(known_, k_, last_log_threshold_, deviation_);
}

}  // namespace oktopk
