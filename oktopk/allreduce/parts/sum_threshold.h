// SPDX-License-Identifier: Apache-2.0
// oktopk's global threshold between two exact evaluations, by one of three rules (ThresholdRule):
//   paper      the pseudocode of Ok-Topk: evaluated every tau' steps, unchanged in between
//   published  the authors' released code: the same, and 0.8% up or down after a count beyond 4k/3
//              or below 2k/3
//   steered    ours, the default: the threshold moves on with the trend between the last two
//              evaluations, and after each step by a part of a Newton step towards k, with the
//              slope of the observed tail (Hill's estimator). A count that leaves the band around k
//              is not gathered: the threshold is evaluated in the same step. The interval between
//              planned evaluations follows the drift: it doubles, up to 16 tau', when the count was
//              near k, and halves when it was not.
// Whether to evaluate depends on counts that all ranks know, so they decide alike.
#pragma once

#include <cstdint>
#include <span>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/base/state.h"

namespace oktopk {

class SumThreshold {
 public:
  SumThreshold(ThresholdRule rule, int tau_prime)
      : rule_(rule), tau_prime_(static_cast<std::uint64_t>(tau_prime)), interval_(tau_prime_) {}

  float value() const { return value_; }

  // Whether step `count` must evaluate before it knows how many sums reach the threshold.
  bool is_unknown(std::uint64_t count, std::size_t k) const;
  // Whether it must evaluate now that it knows.
  bool is_refuted(std::uint64_t count, std::uint64_t reached, std::size_t k);

  // The exact threshold of step `count`, and how many non-zero sums there were: with fewer than k
  // the next step evaluates again.
  void set(float value, std::uint64_t available, std::uint64_t count, std::size_t k);
  // A step that gathered these sums, all that reach the threshold.
  void observe(std::span<const float> gathered, std::size_t k);

  // The most sums that a step gathers without an evaluation.
  static double most_gathered(double k);

  void save(StateWriter& state) const;
  void load(StateReader& state);

 private:
  ThresholdRule rule_;
  std::uint64_t tau_prime_;
  float value_ = 0;
  float exact_ = 0;   // at the last evaluation, or when one was found to be needless
  double trend_ = 0;  // steered: of ln(threshold), per step
  double off_ = 0;    // steered: ln(count / k) of the last step that did not evaluate
  bool known_ = false;
  std::uint64_t k_ = 0;          // of the last step: another k needs another threshold
  std::uint64_t evaluated_ = 0;  // the step of the last evaluation
  std::uint64_t interval_;       // steered: steps until the next planned one
};

}  // namespace oktopk
