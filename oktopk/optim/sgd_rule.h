// SPDX-License-Identifier: Apache-2.0
// The update of one coordinate by SGD with momentum, written once: SparseSGD (sgd.cc), the PyTorch optimisers
// (tensor_step.h) and kernels of other devices include it. Formulas and reasons: docs/optimisers.md. A step in which
// everything arrives equals that of torch.optim.SGD, bit by bit.
#pragma once

#include "oktopk/optim/interval_clock.h"

namespace oktopk {

// Constants of one step that all parameters of a group share.
struct SgdStep {
  double momentum = 0;
  double weight_decay = 0;  // coupled: added to the gradient
  bool nesterov = false;
  ClockView clock;
  PowerView powers;  // of the momentum
};

// The same in the type of the velocity. All but the first two follow from these.
template <class Real>
struct SgdRule {
  SgdStep group;
  bool silence_follows = false;  // false after dense steps
  Real momentum = static_cast<Real>(group.momentum);
  Real weight_decay = static_cast<Real>(group.weight_decay);
  Real minus_rate = static_cast<Real>(-group.clock.rate);
};

// The move of a weight per rate in one step with a gradient. Takes the velocity forward.
template <class Real>
OKTOPK_RULE Real sgd_once(const SgdRule<Real>& rule, Real gradient, Real& velocity) {
  velocity = velocity * rule.momentum + gradient;
  return rule.group.nesterov ? std::fma(velocity, rule.momentum, gradient) : velocity;
}

// The same for `total`, which arrives after tau > 1 steps: the sum of the tau velocities v_j = mu v_(j-1) + S / tau,
// plus those of the interval that is expected next.
template <class Real>
OKTOPK_RULE Real sgd_late(const SgdRule<Real>& rule, Real total, std::uint32_t tau, Real& velocity) {
  const double mu = rule.group.momentum;
  const double fresh = one_minus_power(rule.group.powers, tau);
  const double carried = mu * fresh / (1 - mu);  // mu + mu^2 + ... + mu^tau
  const double gone = rule.silence_follows ? one_minus_power(rule.group.powers, tau - 1) : 0;
  const double ahead = mu * gone / (1 - mu);  // mu + mu^2 + ... over the next interval
  const Real settled = total / static_cast<Real>(tau) / static_cast<Real>(1 - mu);  // v's limit
  Real move = static_cast<Real>(carried) * velocity + static_cast<Real>(tau - carried) * settled;
  velocity = static_cast<Real>(1 - fresh) * velocity + static_cast<Real>(fresh) * settled;
  move += static_cast<Real>(ahead) * velocity;
  velocity = static_cast<Real>(1 - gone) * velocity;
  return rule.group.nesterov ? std::fma(move, rule.momentum, total) : move;
}

// The move of a weight per rate. velocity: null without momentum.
template <class Real>
OKTOPK_RULE Real sgd_move(const SgdRule<Real>& rule, Real total, std::uint32_t tau, Real* velocity) {
  if (velocity == nullptr) return total;
  return tau == 1 ? sgd_once(rule, total, *velocity) : sgd_late(rule, total, tau, *velocity);
}

// The weight after `total`, the sum since the coordinate last arrived. The weight did not move since then, so the decay
// of each step pulled alike; the rate is the mean of the rates.
template <class Real>
OKTOPK_RULE Real sgd_arrive(const SgdRule<Real>& rule, Real weight, Real total, std::uint32_t last, Real* velocity) {
  const ClockView& clock = rule.group.clock;
  const std::uint32_t tau = clock.now - last;
  if (rule.group.weight_decay != 0) total = std::fma(weight, rule.weight_decay * static_cast<Real>(tau), total);
  const Real move = sgd_move(rule, total, tau, velocity);
  return std::fma(move, static_cast<Real>(-(rate_since(clock, last) / tau)), weight);
}

}  // namespace oktopk
