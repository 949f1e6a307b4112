// SPDX-License-Identifier: Apache-2.0
// Tables that the update rules of Adam and SGD (adam_rule.h, sgd_rule.h) read for a coordinate: the
// clock of silent steps and the powers of a beta. Plain pointers, so that any kernel can hold them;
// who owns the tables: RateHistory (interval_clock.h) and PowerTable (power_table.h).
//
// The rules are static: each kernel file has its own copy, compiled for its own instructions.
// Only operations with one right result (+ - * / sqrt fma), so that all levels, all numbers of
// threads and all ranks agree bit by bit.
#pragma once

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define OKTOPK_RULE static __host__ __device__ inline
#else
#define OKTOPK_RULE static inline
#endif

namespace oktopk {

// Over the steps up to and including one. kept: the product of what weight decay leaves of a
// weight in each step, up to a factor that is common to all entries: only ratios count.
struct StepTotals {
  double rate = 0;
  double kept = 1;
};

// The clock of a group of parameters in one step. REQUIRES: totals[0..now], unless nobody asks
// about more than one step.
struct ClockView {
  std::uint32_t now = 0;  // steps made, this one included
  double rate = 0;        // the learning rate of this step
  double kept = 1;        // what weight decay leaves of a weight in this step
  const StepTotals* totals = nullptr;
};

// The sum of the learning rates since step `last`; of no steps, the last one. One step is exact,
// not a difference of sums: that is what makes interval-aware Adam AdamW.
OKTOPK_RULE double rate_since(const ClockView& clock, std::uint32_t last) {
  if (clock.now - last <= 1) return clock.rate;
  return clock.totals[clock.now].rate - clock.totals[last].rate;
}

// The factor that weight decay leaves between two steps. Both may be so long ago that only infinity
// is left.
OKTOPK_RULE double kept_between(const StepTotals* totals, std::uint32_t begin, std::uint32_t end) {
  const double before = totals[begin].kept;
  const double after = totals[end].kept;
  return before == after ? 1 : after / before;
}

OKTOPK_RULE double kept_since(const ClockView& clock, std::uint32_t begin) {
  if (clock.now == begin) return 1;
  if (clock.now - begin == 1) return clock.kept;
  return kept_between(clock.totals, begin, clock.now);
}

// 1 - beta^j for j < size; from size - 1 on it is 1, or nobody asks.
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

}  // namespace oktopk
