// SPDX-License-Identifier: Apache-2.0
#include "oktopk/optim/interval_clock.h"

#include <algorithm>
#include <cmath>

#include "oktopk/base/error.h"
#include "oktopk/base/state.h"

namespace oktopk {

void IntervalClock::tick(double rate, double weight_decay) {
  if (runs_.empty() || runs_.back().rate != rate || runs_.back().weight_decay != weight_decay)
    runs_.push_back({0, rate, weight_decay});
  ++runs_.back().steps;
  rate_ = rate;
  kept_ = decay_of_one_step(rate, weight_decay);
  has_decayed_ = has_decayed_ || kept_ != 1;
  totals_.push_back({totals_.back().rate + rate, totals_.back().kept * kept_});
  if (totals_.back().kept >= kLeastKept) return;
  for (StepTotals& total : totals_) total.kept /= kLeastKept;
  ++rescalings_;
}

void IntervalClock::jump(std::uint64_t steps, const StepTotals& to) {
  const StepTotals from = totals_.back();
  has_decayed_ = has_decayed_ || to.kept != from.kept;
  for (std::uint64_t step = 1; step < steps; ++step) {
    const double share = static_cast<double>(step) / static_cast<double>(steps);
    const double kept = std::isfinite(from.kept) ? std::lerp(from.kept, to.kept, share) : from.kept;
    totals_.push_back({std::lerp(from.rate, to.rate, share), kept});
  }
  if (steps > 0) totals_.push_back({});
  totals_.back() = to;
}

void IntervalClock::save(StateWriter& state) const {
  state.put(std::uint64_t{runs_.size()});
  for (const Run& run : runs_) {
    state.put(run.steps);
    state.put(run.rate);
    state.put(run.weight_decay);
  }
}

void IntervalClock::load(StateReader& state, std::uint64_t steps_made) {
  *this = IntervalClock();
  const auto count = state.take<std::uint64_t>();
  constexpr std::uint64_t kMostTicks = (1U << 31U) - 1;
  const std::uint64_t most = std::min(steps_made, kMostTicks);
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto steps = state.take<std::uint64_t>();
    const auto rate = state.take_finite<double>("a learning rate", 0);
    const auto decay = state.take_finite<double>("a weight decay", 0);
    require(decay_of_one_step(rate, decay) > 0, "state: a learning rate of ", rate, " and a weight decay of ", decay,
            ", but their product must be less than 1");
    // Before the totals grow: a few bytes can claim any number of steps.
    require(steps > 0 && steps <= most - now(), "state: a run of ", steps, " steps after step ", now(),
            ", but a run has at least one step, and all runs together the ", most, " that were made");
    for (std::uint64_t step = 0; step < steps; ++step) tick(rate, decay);
  }
}

PowerView PowerTable::up_to(double beta, std::uint32_t exponent) {
  if (beta != beta_) values_.clear();
  beta_ = beta;
  while (values_.size() <= exponent && (values_.empty() || values_.back() < 1))
    values_.push_back(1 - std::pow(beta, static_cast<double>(values_.size())));
  return {values_.data(), static_cast<std::uint32_t>(values_.size())};
}

}  // namespace oktopk
