// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/global_threshold.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "oktopk/base/error.h"
#include "oktopk/sparse/tail.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

// Changes of the mean local threshold, in units of BlockNote::kOctave.
constexpr std::int64_t kJump = 148;  // 0.1 nepers
constexpr std::int64_t kNotice = 7;  // 0.5%: less is noise
constexpr double kSlopeReach = 0.9;  // of the entries: where the tail's slope tells where a share begins
constexpr double kOff = 0.2;         // of the aim: a count that falls shorter asks for a refresh

}  // namespace

double GlobalThreshold::most_gathered(double k) {
  const double aim = k * (1 + kMaxOvershoot / 1000.0) + 1;
  return aim * (1 + kOff) + count_noise(aim);
}

std::uint64_t GlobalThreshold::aim(std::size_t k) const {
  const std::uint64_t overshoot = std::clamp(2 * deviation_, kMinOvershoot, kMaxOvershoot);
  return k + (k * overshoot + 999) / 1000;
}

bool GlobalThreshold::follow(const BlockNote& summed, std::size_t k) {
  const auto other = static_cast<std::uint64_t>(k);
  if (10 * other > 11 * k_ || 11 * other < 10 * k_) known_ = false;
  k_ = other;
  if (summed.contributors == 0) return !known_;
  const std::int64_t mean = summed.log_threshold / std::int64_t{summed.contributors};
  const std::int64_t change = known_ ? mean - last_log_threshold_ : 0;
  if (std::abs(change) > kJump) known_ = false;
  if (known_ && std::abs(change) < kNotice) return false;
  // A threshold that falls lets through what waits just below it: only feedback knows how far.
  if (change > 0)
    value_.value *=
        static_cast<float>(std::exp2(static_cast<double>(change) / static_cast<double>(BlockNote::kOctave)));
  last_log_threshold_ = mean;
  return !known_;
}

void GlobalThreshold::refresh(Communicator& comm, std::span<const float> mine, std::size_t k, Workspace& work) {
  const std::uint64_t target = aim(k);
  const KthSum kth = finder_.find(comm, mine, target, work);
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
    // The next step gathers, of as many arrivals, the share that is as large as the `keep` largest
    // entries of this step, and of those that were trimmed all that are.
    const double part = arrivals / count;
    const double keep = carried > 0 ? (target + count - carried) / (1 + part) : target / part;
    rise(seen.values, std::clamp(keep, 1.0, count));
  }
  resize_window(seen.near, k);
}

// To where `missing` entries more lie above it. Where the window holds too few of them, nobody
// knows how far that is: the threshold falls to the end of the window, and the next window is
// wider.
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

// To where `keep` of the entries lie above it: by the tail's slope, or exactly where that is far.
void GlobalThreshold::rise(std::span<const float> gathered, double keep) {
  const auto count = static_cast<double>(gathered.size());
  if (keep < kSlopeReach * count) {
    value_.value = kth_magnitude(gathered, static_cast<std::size_t>(keep));
  } else {
    const double slope = steering_slope(gathered, value_.value);
    value_.value *= static_cast<float>(std::exp(slope * std::log(count / keep)));
  }
}

// Narrow enough that the window holds a small part of k, wide enough that it holds some.
void GlobalThreshold::resize_window(const NearTail& near, std::size_t k) {
  const std::uint64_t waiting = std::accumulate(near.below.begin(), near.below.end(), std::uint64_t{0});
  const auto count = static_cast<double>(waiting);
  const double some = std::max(static_cast<double>(k) / 64, count_noise(static_cast<double>(k)));
  if (count > 4 * some) value_.window = std::max(kNarrowest, value_.window / 2);
  if (count < some / 2) value_.window = std::min(kWidest, value_.window * 2);
}

void GlobalThreshold::save(StateWriter& state) const {
  state.put(value_.value);
  state.put(value_.window);
  state.put(known_);
  state.put(k_);
  state.put(last_log_threshold_);
  state.put(deviation_);
}

void GlobalThreshold::load(StateReader& state) {
  value_.value = state.take_finite<float>("the global threshold", 0);
  value_.window = state.take_finite<float>("the threshold's window", kNarrowest);
  known_ = state.take<bool>();
  k_ = state.take<std::uint64_t>();
  last_log_threshold_ = state.take<std::int64_t>();
  deviation_ = state.take<std::uint64_t>();
}

}  // namespace oktopk
