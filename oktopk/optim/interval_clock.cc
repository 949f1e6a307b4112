// SPDX-License-Identifier: Apache-2.0
#include "oktopk/optim/interval_clock.h"

#include <algorithm>
#include <cmath>

#include "oktopk/base/error.h"

namespace oktopk {

IntervalClock::IntervalClock(std::size_t n, float weight_decay)
    : weight_decay_(weight_decay), last_(n, 0), totals_(1) {}

void IntervalClock::tick(float rate) {
  const Totals before = totals_.back();
  totals_.push_back(
      {before.rate + rate, before.log_decay + std::log1p(-double{rate} * weight_decay_)});
  rate_ = rate;
  decay_ = decay_of_one_step(rate, weight_decay_);
}

float IntervalClock::decay_from(std::uint32_t begin) const {
  if (weight_decay_ == 0 || begin == now()) return 1;
  return static_cast<float>(std::exp(totals_.back().log_decay - totals_[begin].log_decay));
}

void IntervalClock::catch_up(std::span<float> weights) {
  if (weight_decay_ != 0 && caught_up_ < now())
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] *= decay_since(static_cast<Index>(i));
  caught_up_ = now();
}

void IntervalClock::save(StateWriter& state) const {
  state.put(rate_);
  state.put(caught_up_);
  state.put_all(std::span<const std::uint32_t>(last_));
  state.put(std::uint64_t{totals_.size()});
  for (const Totals& total : totals_) {
    state.put(total.rate);
    state.put(total.log_decay);
  }
}

void IntervalClock::load(StateReader& state) {
  rate_ = state.take_finite<float>("the learning rate of the last step", 0);
  decay_ = decay_of_one_step(rate_, weight_decay_);
  caught_up_ = state.take<std::uint32_t>();
  const std::size_t expected = n();
  last_ = state.take_all<std::uint32_t>();
  require(n() == expected, "state: ", n(), " clocks, but n = ", expected);
  const auto count = state.take<std::uint64_t>();
  require(count > 0, "state: a clock without a first step");
  totals_.clear();
  for (std::uint64_t t = 0; t < count; ++t) {
    const auto rate = state.take_finite<double>("a sum of learning rates", 0);
    totals_.push_back({rate, state.take_finite<double>("a sum of weight decays")});
  }
  const auto latest = std::max_element(last_.begin(), last_.end());
  require(caught_up_ <= now() && (latest == last_.end() || *latest <= now()),
          "state: a clock that is ahead of its ", now(), " steps");
}

}  // namespace oktopk
