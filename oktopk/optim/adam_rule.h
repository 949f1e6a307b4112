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

// Constants of one step that all parameters of a group share.
struct AdamStep {
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
  bool ages_by_arrivals = false;  // interval_aware; else the moments age by steps
  ClockView clock;
  PowerView first;   // of beta1
  PowerView second;  // of beta2
};

// The constants of one parameter, which may have made fewer steps than others. Real: the type of its moments.
template <class Real>
struct AdamRule {
  AdamStep group;
  std::uint32_t steps = 0;       // made by this parameter, this one included
  bool silence_follows = false;  // false after dense steps
  double first_bias = 0;
  Real fresh1 = 0;  // 1 - beta1
  Real beta2 = 0;
  Real fresh2 = 0;  // 1 - beta2
  Real root2 = 0;   // of the second moment's bias
  Real epsilon = 0;
  Real kept = 0;  // of a weight, in this step
  Real move = 0;  // minus the rate, over the first moment's bias
};

// pow(x, 0.5) is what torch computes, in Python.
template <class Real>
OKTOPK_RULE AdamRule<Real> adam_rule(const AdamStep& group, std::uint32_t steps, bool silence_follows) {
  const double bias = 1 - std::pow(group.beta1, static_cast<double>(steps));
  const double bias2 = 1 - std::pow(group.beta2, static_cast<double>(steps));
  const auto real = [](double x) { return static_cast<Real>(x); };
  return {.group = group,
          .steps = steps,
          .silence_follows = silence_follows,
          .first_bias = bias,
          .fresh1 = real(1 - group.beta1),
          .beta2 = real(group.beta2),
          .fresh2 = real(1 - group.beta2),
          .root2 = real(std::pow(bias2, 0.5)),
          .epsilon = real(group.epsilon),
          .kept = real(group.clock.kept),
          .move = real(-group.clock.rate / bias)};
}

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
  std::uint32_t& last;
  std::uint32_t* arrivals;  // of ages_by_arrivals
};

// Adds S^2 / tau to the second moment as one observation. Returns the root of the moment's bias.
template <class Real>
OKTOPK_RULE Real adam_age_by_arrivals(const AdamRule<Real>& rule, Real total, std::uint32_t tau,
                                      const AdamCoordinate<Real>& at) {
  // A flush may add to a coordinate that arrived in the last step: this is no further arrival.
  const std::uint32_t arrivals = *at.arrivals < rule.steps ? *at.arrivals + 1 : rule.steps;
  *at.arrivals = arrivals;
  const double bias = one_minus_power(rule.group.second, arrivals);
  const Real mean = tau == 1 ? total : total / static_cast<Real>(tau);
  at.v = std::fma(rule.fresh2 * total, mean, at.v * rule.beta2);
  const Real surprise = static_cast<Real>(bias / (kSurprise * kSurprise)) * (total * mean);
  if (tau > 1 && surprise > at.v) at.v = surprise;
  return static_cast<Real>(std::sqrt(bias));
}

// Adds S^2 / tau to the second moment as the squares of tau steps.
template <class Real>
OKTOPK_RULE void adam_age_by_steps(const AdamRule<Real>& rule, Real total, std::uint32_t tau, Real& v) {
  if (tau == 1) {
    v = std::fma(rule.fresh2 * total, total, v * rule.beta2);
    return;
  }
  const double fresh = one_minus_power(rule.group.second, tau);
  const Real square = total * (total / static_cast<Real>(tau));
  v = std::fma(static_cast<Real>(fresh), square, static_cast<Real>(1 - fresh) * v);
}

// The move of a weight per rate, before the division by the root of the second moment, when S arrives after tau steps:
// the mean of m over these steps, as if S / tau had come in each, plus the move of m in the interval that is expected
// next. Takes m forward.
template <class Real>
OKTOPK_RULE Real adam_drift(const AdamRule<Real>& rule, Real total, std::uint32_t tau, Real& m) {
  if (tau == 1) return m = lerp(m, total, rule.fresh1);
  const double beta1 = rule.group.beta1;
  const double fresh = one_minus_power(rule.group.first, tau);
  const Real old = m;
  const Real mean = total / static_cast<Real>(tau);
  m = lerp(old, mean, static_cast<Real>(fresh));
  if (!rule.group.ages_by_arrivals) return m;
  const double gone = rule.silence_follows ? one_minus_power(rule.group.first, tau - 1) : 0;
  const double reach = beta1 / ((1 - beta1) * tau);
  const Real drift = lerp(old, mean, static_cast<Real>(1 - reach * fresh));
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
  Real root2 = rule.root2;
  if (rule.group.ages_by_arrivals)
    root2 = adam_age_by_arrivals(rule, total, tau, at);
  else
    adam_age_by_steps(rule, total, tau, at.v);
  const auto kept = static_cast<Real>(kept_since(clock, last > caught_up ? last : caught_up));
  const auto move = static_cast<Real>(-rate_since(clock, last) / rule.first_bias);
  at.last = clock.now;
  return weight * kept + move * drift / (std::sqrt(at.v) / root2 + rule.epsilon);
}

}  // namespace oktopk
