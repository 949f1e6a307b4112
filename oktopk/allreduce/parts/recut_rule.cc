// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/recut_rule.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

struct Peak {
  std::uint64_t load = 0;
  std::uint64_t width = 0;
};

// The largest load that cuts can divide.
Peak divisible_peak(const Cuts& cuts, std::span<const std::uint64_t> load) {
  Peak peak;
  for (std::size_t r = 0; r < load.size(); ++r) {
    const std::uint64_t width = cuts[r + 1] - cuts[r];
    if (width > 1 && load[r] > peak.load) peak = {load[r], width};
  }
  return peak;
}

}  // namespace

bool RecutRule::is_due(std::uint64_t step, const Cuts& cuts, std::span<const std::uint64_t> load) {
  const Peak peak = divisible_peak(cuts, load);
  const std::uint64_t total = std::accumulate(load.begin(), load.end(), std::uint64_t{0});
  const std::uint64_t uneven = total == 0 ? 0 : 1000 * peak.load * load.size() / total;
  if (uneven_ > 0 && step == last_ + 1) {  // the first step with the new cuts judges them
    const bool helped = 10 * uneven <= 9 * uneven_ || 4 * peak.width <= 3 * width_;
    pause_ = helped ? kPause : std::min(2 * pause_, kLongestPause);
  }
  if (step != 0 && step < last_ + pause_) return false;
  const double mean = static_cast<double>(total) / static_cast<double>(load.size());
  if (static_cast<double>(peak.load) <= 1.5 * mean + 4 * std::sqrt(mean)) return false;
  last_ = step;
  uneven_ = uneven;
  width_ = peak.width;
  return true;
}

void RecutRule::save(StateWriter& state) const {
  for (const std::uint64_t number : {last_, pause_, uneven_, width_}) state.put(number);
}

void RecutRule::load(StateReader& state) {
  for (std::uint64_t* number : {&last_, &pause_, &uneven_, &width_}) *number = state.take<std::uint64_t>();
  require(pause_ >= kPause && pause_ <= kLongestPause, "state: a pause of ", pause_,
          " steps between two changes of the cuts, must be in ", kPause, "..", kLongestPause);
}

}  // namespace oktopk
