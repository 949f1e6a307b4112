// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/adaptive_density.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <sstream>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/reduce/inspect.h"

namespace oktopk {
namespace {

constexpr double kMostChange = 1.25;  // of k per interval, up or down
constexpr double kSpan = 10;          // from the first density to the most, and to the least

constexpr std::uint64_t kMostSteps = std::uint64_t{1} << 31U;  // times n fits 64 bits

// A rule for one of the densities, where 0 stands for what is said in the brackets.
void check_density(std::string_view name, double value, std::string_view zero) {
  require(value >= 0 && value <= 1, "adaptive density: ", name, " = ", value, ", but it must be in (0, 1] (0: ", zero,
          ")");
}

void check(const AdaptiveDensityOptions& o) {
  if (o.target_share == 0) {
    require(o.least == 0 && o.most == 0 && o.budget == 0,
            "adaptive density: least, most or budget was given without a target share");
    return;
  }
  require(o.target_share > 0 && o.target_share < 1, "adaptive density: target share = ", o.target_share,
          ", but it must be in (0, 1)");
  require(o.interval >= 1, "adaptive density: interval = ", o.interval, ", but it must be at least 1 step");
  check_density("least", o.least, "a tenth of the first density");
  check_density("most", o.most, "ten times the first density");
  check_density("budget", o.budget, "none");
  require(o.most == 0 || o.least <= o.most, "adaptive density: least = ", o.least, " is above most = ", o.most);
  require(o.budget == 0 || o.least <= o.budget, "adaptive density: least = ", o.least, " is above budget = ", o.budget);
}

}  // namespace

std::string describe(const AdaptiveDensityOptions& o) {
  check(o);
  if (o.target_share == 0) return {};
  std::ostringstream text;
  text << kAdaptiveMark << digits(o.target_share) << ", least " << digits(o.least) << ", most " << digits(o.most)
       << ", budget " << digits(o.budget) << ", interval " << digits(o.interval);
  return text.str();
}

SentShare SentShare::of(double sent, double all) {
  if (!(all > 0)) return {};
  const double share = std::clamp(sent / all, 0.0, 1.0);
  return {static_cast<std::uint64_t>(share * kUnit), 1};
}

double SentShare::mean() const {
  if (ranks == 0) return 0;
  return static_cast<double>(units) / static_cast<double>(ranks) / kUnit;
}

Cost share_cost(int P, int interval) {
  const double rounds = static_cast<double>(ceil_log2(P)) / interval;
  return sequential(rounds, rounds * (2 * sizeof(std::uint64_t) + kCheckBytes));
}

AdaptiveDensity::AdaptiveDensity(const AdaptiveDensityOptions& o, Index n, std::size_t first) {
  if (o.target_share == 0 || n == 0) return;
  const double all = n;
  const auto start = static_cast<double>(first);
  target_ = o.target_share;
  budget_ = o.budget > 0 ? std::max(1.0, o.budget * all) : 0;
  most_ = std::clamp(std::round(o.most > 0 ? o.most * all : start * kSpan), 1.0, all);
  least_ = std::clamp(std::round(o.least > 0 ? o.least * all : start / kSpan), 1.0, most_);
  interval_ = static_cast<std::uint64_t>(o.interval);
  turn_ = n / first;
  wanted_ = std::clamp(start, least_, most_);
}

// Entries that so many steps may send in all.
std::uint64_t AdaptiveDensity::allowed(std::uint64_t steps) const {
  return static_cast<std::uint64_t>(budget_ * static_cast<double>(steps));
}

// At least one entry is left: spent_ <= allowed(steps_), and a step adds one or more.
std::size_t AdaptiveDensity::k() const {
  const auto wanted = static_cast<std::uint64_t>(std::llround(wanted_));
  return budget_ > 0 ? std::min(wanted, allowed(steps_ + 1) - spent_) : wanted;
}

// The part that the budget cut off is forgotten: k must not wait at a height that it cannot have.
void AdaptiveDensity::count() {
  const std::size_t made = k();
  wanted_ = std::min(wanted_, static_cast<double>(made) + 0.5);
  spent_ += made;
  ++steps_;
}

// A share below the unit of measure is as far from the target as any. While the residual fills,
// after a dense warm-up above all, the share is larger than it will be: no reason to send less.
void AdaptiveDensity::observe(const SentShare& sum) {
  if (sum.ranks == 0) return;
  const double share = std::max(sum.mean(), 1 / SentShare::kUnit);
  const double least = steps_ < turn_ ? 1 : 1 / kMostChange;
  const double factor = std::clamp(std::sqrt(target_ / share), least, kMostChange);
  wanted_ = std::clamp(wanted_ * factor, least_, most_);
}

AdaptiveDensity::Words AdaptiveDensity::words() const {
  return {std::bit_cast<std::uint64_t>(wanted_), steps_, spent_};
}

void AdaptiveDensity::resume(const Words& words) {
  const auto wanted = std::bit_cast<double>(words[0]);
  require(wanted >= 0 && wanted < SentShare::kUnit && words[1] < kMostSteps, "state: an adaptive density of ", wanted,
          " entries after ", words[1], " steps");
  if (!is_on() || words[1] == 0) return;
  wanted_ = std::clamp(wanted, 1.0, most_);
  steps_ = words[1];
  spent_ = budget_ > 0 ? std::min(words[2], allowed(steps_)) : words[2];
}

}  // namespace oktopk
