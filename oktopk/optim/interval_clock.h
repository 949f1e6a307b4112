// SPDX-License-Identifier: Apache-2.0
// Tables for coordinates that arrive after steps without an arrival: the sum of the learning rates and the product of
// the weight decays since then (IntervalClock), and powers of a beta (PowerTable). The update rules (adam_rule.h,
// sgd_rule.h) read both through views of plain pointers, so that a kernel of any device can hold them. The rules are
// static functions: each kernel file has its own copy, compiled for its own instructions. They use only operations with
// one correct result (+ - * / sqrt fma), so all SIMD levels, thread counts and ranks agree bit by bit.
// COST: O(1) and 16 B per step, 24 B per run of steps with one rate. Fewer than 2^31 steps.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#ifdef __CUDACC__
#define OKTOPK_RULE static __host__ __device__ inline
#else
#define OKTOPK_RULE static inline
#endif

namespace oktopk {

class StateReader;
class StateWriter;

// Sums over all steps up to one. kept: the product of the factors 1 - rate * weight_decay, up to a constant that is
// common to all entries; only ratios have a meaning.
struct StepTotals {
  double rate = 0;
  double kept = 1;
};

// The clock in one step. REQUIRES: totals[0..now], unless no interval is longer than one step.
struct ClockView {
  std::uint32_t now = 0;  // steps made, this one included
  double rate = 0;        // the learning rate of this step
  double kept = 1;        // the factor of weight decay in this step
  const StepTotals* totals = nullptr;
};

// The sum of the learning rates after step `last`. One step gives the rate itself, not a difference of sums: this makes
// interval-aware Adam equal to AdamW. No step counts as one.
OKTOPK_RULE double rate_since(const ClockView& clock, std::uint32_t last) {
  return clock.now - last <= 1 ? clock.rate : clock.totals[clock.now].rate - clock.totals[last].rate;
}

// The factor of weight decay between two steps. Both totals are infinite when they are too long ago.
OKTOPK_RULE double kept_between(const StepTotals* totals, std::uint32_t begin, std::uint32_t end) {
  return totals[begin].kept == totals[end].kept ? 1 : totals[end].kept / totals[begin].kept;
}

OKTOPK_RULE double kept_since(const ClockView& clock, std::uint32_t begin) {
  if (clock.now == begin) return 1;
  return clock.now - begin == 1 ? clock.kept : kept_between(clock.totals, begin, clock.now);
}

// 1 - beta^j for j < size. From j = size - 1 on it is 1, or nobody asks.
struct PowerView {
  const double* one_minus = nullptr;
  std::uint32_t size = 0;
};

OKTOPK_RULE double one_minus_power(const PowerView& powers, std::uint32_t j) {
  return powers.one_minus[j < powers.size ? j : powers.size - 1];
}

// From a (weight 0) to b (weight 1), rounded as torch.lerp rounds.
template <class Real>
OKTOPK_RULE Real lerp(Real a, Real b, Real weight) {
  const bool is_near_a = weight < Real(0.5);
  return std::fma(is_near_a ? weight : weight - 1, b - a, is_near_a ? a : b);
}

// The factor of decoupled weight decay in one step.
OKTOPK_RULE double decay_of_one_step(double rate, double weight_decay) { return 1 - rate * weight_decay; }

// A clock divides what is kept by this number before it becomes too small for a double. Only ratios count. Old totals
// become infinite: nothing is left of a weight since then.
inline constexpr double kLeastKept = 0x1p-512;

// The learning rates and weight decays of all steps so far.
class IntervalClock {
 public:
  // Consecutive steps with the same rate and decay. A saved clock is its runs; the totals follow from them.
  struct Run {
    std::uint64_t steps = 0;
    double rate = 0;
    double weight_decay = 0;
  };

  // Begins a step. REQUIRES: rate * weight_decay < 1.
  void tick(double rate, double weight_decay);
  // Another clock's steps from now on, of which only the totals at the last one are known; between two of these, totals
  // lie on a line. No steps: changes the totals of this step. runs() has no such steps.
  void jump(std::uint64_t steps, const StepTotals& to);
  std::uint32_t now() const { return static_cast<std::uint32_t>(totals_.size() - 1); }
  // Good until the next tick.
  ClockView view() const { return {now(), rate_, kept_, totals_.data()}; }
  std::span<const StepTotals> totals() const { return totals_; }
  std::span<const Run> runs() const { return runs_; }
  bool has_decayed() const { return has_decayed_; }         // the weight decay of some step was not zero
  std::uint32_t rescalings() const { return rescalings_; }  // of all totals: they became too small for a double

  void save(StateWriter& state) const;
  // UsageError when the runs make no sense, or have more steps than were made.
  void load(StateReader& state, std::uint64_t steps_made);

 private:
  double rate_ = 0;  // of this step, as kept_
  double kept_ = 1;
  bool has_decayed_ = false;
  std::uint32_t rescalings_ = 0;
  std::vector<StepTotals> totals_{1};  // by step, from 0
  std::vector<Run> runs_;
};

// 1 - beta^j by j, in double. Grows with the steps made and ends where the power no longer changes a double: after
// about 350 entries for a beta of 0.9, 37,000 for 0.999. A new beta rebuilds the table.
class PowerTable {
 public:
  // Good until the next call. REQUIRES: beta in [0, 1).
  PowerView up_to(double beta, std::uint32_t exponent);

 private:
  double beta_ = 0;
  std::vector<double> values_;
};

}  // namespace oktopk
