// SPDX-License-Identifier: Apache-2.0
// When each coordinate last arrived, and what happened since: how many steps, the sum of their
// learning rates, the product of their weight decays. Lets SparseAdam touch only what arrives, and
// be right under any schedule.
// Memory: 4 B per coordinate, 16 B per step. Fewer than 2^32 steps.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "oktopk/base/state.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

// What decoupled weight decay multiplies a weight by in one step.
inline float decay_of_one_step(float rate, float weight_decay) {
  return static_cast<float>(1 - double{rate} * weight_decay);
}

class IntervalClock {
 public:
  IntervalClock(std::size_t n, float weight_decay);

  // A step begins. REQUIRES: rate * weight_decay < 1.
  void tick(float rate);
  std::uint32_t now() const { return static_cast<std::uint32_t>(totals_.size() - 1); }
  std::size_t n() const { return last_.size(); }

  // Steps since coordinate i last arrived, this one included.
  std::uint32_t interval(Index i) const { return now() - last_[i]; }
  // The sum of their learning rates; of an interval of 0 steps, that of the last one. One step is
  // exact, not a difference of sums: that is what makes SparseAdam AdamW.
  float rate_since(Index i) const {
    if (interval(i) <= 1) return rate_;
    return static_cast<float>(totals_.back().rate - totals_[last_[i]].rate);
  }
  // What weight decay multiplies coordinate i by to be up to date.
  float decay_since(Index i) const {
    const std::uint32_t begin = last_[i] > caught_up_ ? last_[i] : caught_up_;
    return now() - begin == 1 ? decay_ : decay_from(begin);
  }
  // Coordinate i arrived, and its weight is decayed up to now.
  void arrive(Index i) { last_[i] = now(); }

  // The weight decay that is still owed, to all.
  void catch_up(std::span<float> weights);

  void save(StateWriter& state) const;
  // UsageError when it is of another n or does not make sense.
  void load(StateReader& state);

 private:
  // Over the steps up to and including one.
  struct Totals {
    double rate = 0;
    double log_decay = 0;
  };
  float decay_from(std::uint32_t begin) const;

  float weight_decay_;
  float rate_ = 0;                   // of this step
  float decay_ = 1;                  // likewise
  std::uint32_t caught_up_ = 0;      // the step up to which all weights are decayed
  std::vector<std::uint32_t> last_;  // by coordinate
  std::vector<Totals> totals_;       // by step, from 0
};

}  // namespace oktopk
