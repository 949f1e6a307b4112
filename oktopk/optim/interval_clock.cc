// SPDX-License-Identifier: Apache-2.0
#include "oktopk/optim/interval_clock.h"

#include <algorithm>

#include "oktopk/base/error.h"

namespace oktopk {

void RateHistory::tick(double rate, double weight_decay) {
  if (runs_.empty() || runs_.back().rate != rate || runs_.back().weight_decay != weight_decay)
    runs_.push_back({0, rate, weight_decay});
  ++runs_.back().steps;
  rate_ = rate;
  kept_ = decay_of_one_step(rate, weight_decay);
  has_decayed_ = has_decayed_ || kept_ != 1;
  totals_.push_back({totals_.back().rate + rate, totals_.back().kept * kept_});
  constexpr double kTooSmall = 0x1p-512;
  if (totals_.back().kept >= kTooSmall) return;
  // Only ratios count. What was long ago becomes infinite: nothing is left of a weight since then.
  for (StepTotals& total : totals_) total.kept /= kTooSmall;
  ++rescalings_;
}

void RateHistory::save(StateWriter& state) const {
  state.put(std::uint64_t{runs_.size()});
  for (const Run& run : runs_) {
    state.put(run.steps);
    state.put(run.rate);
    state.put(run.weight_decay);
  }
}

void RateHistory::load(StateReader& state) {
  *this = RateHistory();
  const auto count = state.take<std::uint64_t>();
  constexpr std::uint64_t kMostTicks = 1U << 31U;
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto steps = state.take<std::uint64_t>();
    const auto rate = state.take_finite<double>("a learning rate", 0);
    const auto decay = state.take_finite<double>("a weight decay", 0);
    require(decay_of_one_step(rate, decay) > 0, "state: a learning rate of ", rate, " and a weight decay of ", decay,
            ", but their product must be less than 1");
    require(steps > 0 && now() + steps < kMostTicks, "state: a stretch of ", steps, " steps after step ", now(),
            ", but it must have some, and all fewer than 2^31");
    for (std::uint64_t step = 0; step < steps; ++step) tick(rate, decay);
  }
}

void IntervalClock::catch_up(std::span<float> weights) {
  const ClockView clock = view();
  if (history_.has_decayed() && caught_up_ < now())
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] *= static_cast<float>(kept_since(clock, std::max(last_[i], caught_up_)));
  caught_up_ = now();
}

void IntervalClock::save(StateWriter& state) const {
  state.put(caught_up_);
  state.put_all(std::span<const std::uint32_t>(last_));
  history_.save(state);
}

void IntervalClock::load(StateReader& state) {
  caught_up_ = state.take<std::uint32_t>();
  const std::size_t expected = n();
  last_ = state.take_all<std::uint32_t>();
  require(n() == expected, "state: ", n(), " clocks, but n = ", expected);
  history_.load(state);
  const auto latest = std::max_element(last_.begin(), last_.end());
  require(caught_up_ <= now() && (latest == last_.end() || *latest <= now()), "state: a clock that is ahead of its ",
          now(), " steps");
}

}  // namespace oktopk
