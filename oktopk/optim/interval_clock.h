// SPDX-License-Identifier: Apache-2.0
// When each coordinate last arrived, and what happened since: how many steps, the sum of their
// learning rates, the product of their weight decays. Lets lazy optimisers touch only what arrives,
// and be right under any schedule.
// Memory: 16 B per step, 24 B per stretch of steps with one rate; IntervalClock 4 B per coordinate.
// COST: O(1) per step. Fewer than 2^31 steps.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "oktopk/base/state.h"
#include "oktopk/optim/rule_tables.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

// What decoupled weight decay multiplies a weight by in one step.
inline double decay_of_one_step(double rate, double weight_decay) { return 1 - rate * weight_decay; }

// The learning rates and weight decays of all steps so far.
class RateHistory {
 public:
  // Steps in a row with the same rate and decay. Runs are what is saved: the totals follow.
  struct Run {
    std::uint64_t steps = 0;
    double rate = 0;
    double weight_decay = 0;
  };

  RateHistory() : totals_(1) {}

  // A step begins. REQUIRES: rate * weight_decay < 1.
  void tick(double rate, double weight_decay);
  std::uint32_t now() const { return static_cast<std::uint32_t>(totals_.size() - 1); }
  // Good until the next tick.
  ClockView view() const { return {now(), rate_, kept_, totals_.data()}; }
  std::span<const StepTotals> totals() const { return totals_; }
  std::span<const Run> runs() const { return runs_; }
  // Whether some step's weight decay was not zero.
  bool has_decayed() const { return has_decayed_; }
  // How often all totals changed, because they would have become too small for a double.
  std::uint32_t rescalings() const { return rescalings_; }

  void save(StateWriter& state) const;
  // UsageError when it does not make sense.
  void load(StateReader& state);

 private:
  double rate_ = 0;  // of this step
  double kept_ = 1;  // likewise
  bool has_decayed_ = false;
  std::uint32_t rescalings_ = 0;
  std::vector<StepTotals> totals_;  // by step, from 0
  std::vector<Run> runs_;
};

class IntervalClock {
 public:
  IntervalClock(std::size_t n, float weight_decay) : weight_decay_(weight_decay), last_(n, 0) {}

  // A step begins. REQUIRES: rate * weight_decay < 1.
  void tick(float rate) { history_.tick(rate, weight_decay_); }
  std::uint32_t now() const { return history_.now(); }
  std::size_t n() const { return last_.size(); }
  ClockView view() const { return history_.view(); }

  // Steps since coordinate i last arrived, this one included.
  std::uint32_t interval(Index i) const { return now() - last_[i]; }
  // By coordinate, the step in which it last arrived; for who makes it arrive.
  std::span<std::uint32_t> last() { return last_; }
  // The step up to which all weights are decayed.
  std::uint32_t caught_up() const { return caught_up_; }

  // The weight decay that is still owed, to all.
  void catch_up(std::span<float> weights);

  void save(StateWriter& state) const;
  // UsageError when it is of another n or does not make sense.
  void load(StateReader& state);

 private:
  double weight_decay_;
  std::uint32_t caught_up_ = 0;
  std::vector<std::uint32_t> last_;
  RateHistory history_;
};

}  // namespace oktopk
