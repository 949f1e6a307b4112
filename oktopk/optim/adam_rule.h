// SPDX-License-Identifier: Apache-2.0
// The update of one coordinate by AdamW, written once: SparseAdamW (adam.cc), the PyTorch optimisers (tensor_step.h)
// and kernels of other devices include it. Formulas and reasons: docs/optimisers.md. A step in which everything arrives
// rounds as torch.optim.AdamW does, except for the square root: torch takes it from a library that does not round
// correctly. Therefore adam_moments() and adam_moved() are separate, and a caller may pass torch's root.
#pragma once

#include "oktopk/optim/interval_clock.h"

namespace oktopk {

// A sum S of more than so many standard deviations says that v is wrong, not that S is rare: a dead unit came to life.
// Then v is computed from S, because the weight would leap otherwise.
constexpr double kSurprise = 5;

// An arrival after tau steps ages the second moment by tau steps, but by no more than this. Aged by one, v follows too
// slowly what gradients become; aged by all of them, it would be an average of a few arrivals (docs/optimisers.md).
constexpr std::uint32_t kMostAge = 10;

// Constants of one step that all parameters of a group share.
struct AdamStep {
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
  ClockView clock;
  PowerView first;   // of beta1
  PowerView second;  // of beta2
};

// The constants of one parameter, which may have made fewer steps than others. Real: the type of its moments. All but
// the first three follow from these.
template <class Real>
struct AdamRule {
  AdamStep group;
  std::uint32_t steps = 0;       // made by this parameter, this one included
  bool silence_follows = false;  // false after dense steps
  double bias1 = 1 - std::pow(group.beta1, static_cast<double>(steps));
  double bias2 = 1 - std::pow(group.beta2, static_cast<double>(steps));
  Real fresh1 = static_cast<Real>(1 - group.beta1);
  Real beta2 = static_cast<Real>(group.beta2);
  Real fresh2 = static_cast<Real>(1 - group.beta2);
  Real root2 = static_cast<Real>(std::pow(bias2, 0.5));  // computed as torch does, in Python
  Real epsilon = static_cast<Real>(group.epsilon);
  Real kept = static_cast<Real>(group.clock.kept);
  Real move = static_cast<Real>(-group.clock.rate / bias1);
};

// Moments after one step with a gradient.
template <class Real>
OKTOPK_RULE void adam_moments(const AdamRule<Real>& rule, Real gradient, Real& m, Real& v) {
  m = lerp(m, gradient, rule.fresh1);
  v = std::fma(rule.fresh2 * gradient, gradient, v * rule.beta2);
}

// The weight after one step. root: the square root of v.
template <class Real>
OKTOPK_RULE Real adam_moved(const AdamRule<Real>& rule, Real weight, Real m, Real root) {
  return weight * rule.kept + rule.move * m / (root / rule.root2 + rule.epsilon);
}

// The state of one coordinate, by reference.
template <class Real>
struct AdamCoordinate {
  Real& m;
  Real& v;
  std::uint32_t& last;      // the step in which it last arrived
  std::uint32_t& arrivals;  // the steps by which arrivals aged v
};

// The age of a second moment after an arrival that counts for `more` steps. It is at most the number of steps: a flush
// may add to a coordinate that arrived in the last step.
OKTOPK_RULE std::uint32_t aged(std::uint32_t age, std::uint32_t more, std::uint32_t steps) {
  return age + more < steps ? age + more : steps;
}

// Adds S^2 / tau to the second moment as an observation of up to kMostAge steps. Returns the root of the moment's bias.
template <class Real>
OKTOPK_RULE Real adam_observe(const AdamRule<Real>& rule, Real total, std::uint32_t tau,
                              const AdamCoordinate<Real>& at) {
  const std::uint32_t more = tau < kMostAge ? tau : kMostAge;
  at.arrivals = aged(at.arrivals, more, rule.steps);
  const double bias = one_minus_power(rule.group.second, at.arrivals);
  const Real mean = tau == 1 ? total : total / static_cast<Real>(tau);
  const Real fresh = tau == 1 ? rule.fresh2 : static_cast<Real>(one_minus_power(rule.group.second, more));
  const Real old = tau == 1 ? rule.beta2 : 1 - fresh;
  at.v = std::fma(fresh * total, mean, at.v * old);
  const Real surprise = static_cast<Real>(bias / (kSurprise * kSurprise)) * (total * mean);
  if (tau > 1 && surprise > at.v) at.v = surprise;
  return static_cast<Real>(std::sqrt(bias));
}

// The move of a weight per rate, before the division by the root of the second moment, when S arrives after tau steps:
// the mean of m over these steps, as if S / tau had come in each, plus the move of m in the interval that is expected
// next. Takes m forward.
template <class Real>
OKTOPK_RULE Real adam_drift(const AdamRule<Real>& rule, Real total, std::uint32_t tau, Real& m) {
  if (tau == 1) return m = lerp(m, total, rule.fresh1);
  const double beta1 = rule.group.beta1;
  const double fresh = one_minus_power(rule.group.first, tau);
  const double gone = rule.silence_follows ? one_minus_power(rule.group.first, tau - 1) : 0;
  const double reach = beta1 / ((1 - beta1) * tau);
  const Real mean = total / static_cast<Real>(tau);
  const Real drift = lerp(m, mean, static_cast<Real>(1 - reach * fresh));
  m = lerp(m, mean, static_cast<Real>(fresh));
  const Real ahead = static_cast<Real>(reach * gone) * m;
  m = static_cast<Real>(1 - gone) * m;
  return drift + ahead;
}

// The weight after `total`, the sum since the coordinate last arrived. Its decay is paid up to step caught_up at least.
template <class Real>
OKTOPK_RULE Real adam_arrive(const AdamRule<Real>& rule, Real weight, Real total, std::uint32_t caught_up,
                             const AdamCoordinate<Real>& at) {
  const ClockView& clock = rule.group.clock;
  const std::uint32_t last = at.last;
  const std::uint32_t tau = clock.now - last > 1 ? clock.now - last : 1;
  const Real drift = adam_drift(rule, total, tau, at.m);
  const Real root2 = adam_observe(rule, total, tau, at);
  const auto kept = static_cast<Real>(kept_since(clock, last > caught_up ? last : caught_up));
  const auto move = static_cast<Real>(-rate_since(clock, last) / rule.bias1);
  at.last = clock.now;
  return weight * kept + move * drift / (std::sqrt(at.v) / root2 + rule.epsilon);
}

}  // namespace oktopk
