// SPDX-License-Identifier: Apache-2.0
#include "oktopk/optim/sgd.h"

#include <algorithm>
#include <cmath>
#include <locale>
#include <sstream>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

void check(const SgdOptions& o) {
  require(o.momentum >= 0 && o.momentum < 1, "sgd: momentum = ", o.momentum, ", but it must be in [0, 1)");
  require(o.weight_decay >= 0 && std::isfinite(o.weight_decay), "sgd: weight_decay = ", o.weight_decay,
          ", but it must be finite and not negative");
  require(!o.nesterov || o.momentum > 0, "sgd: nesterov with momentum = 0, but it needs momentum");
  require(!o.factor_masking || (o.sparsify == Sparsify::updates && o.momentum > 0),
          "sgd: factor_masking with sparsify = ", to_string(o.sparsify), ", momentum = ", o.momentum,
          ", but it masks the momentum of sparsify = updates");
}

}  // namespace

SparseSgd::SparseSgd(Synchroniser& sync, const SgdOptions& options)
    : Optimiser(sync, {.learning_rate = options.learning_rate,
                       .clip_norm = options.clip_norm,
                       .sparsify = options.sparsify,
                       .look_ahead = options.look_ahead}),
      options_(options) {
  check(options);
  if (options.momentum > 0) velocity_.assign(n(), 0.0F);
  if (!is_lazy()) return;
  last_.assign(n(), 0);
}

// Constants by value: through members, each store to a float would make the loops read them again.
struct SparseSgd::Pull {
  float rate;
  float factor;
  float weight_decay;

  // The gradient that SGD sees, times the learning rate.
  float operator()(float gradient, float weight) const { return rate * (factor * gradient + weight_decay * weight); }
};

SparseSgd::Pull SparseSgd::pull(const ScaledGradient& gradient) const {
  return {learning_rate(), gradient.factor, options_.weight_decay};
}

Optimiser::Contribution SparseSgd::prepare(std::span<const float> weights, const ScaledGradient& gradient) {
  if (!has_local_momentum() && options_.weight_decay == 0) return {gradient.values, learning_rate() * gradient.factor};
  prepared_.resize(n());
  const Pull pulled = pull(gradient);
  for (std::size_t i = 0; i < prepared_.size(); ++i) prepared_[i] = pulled(gradient.values[i], weights[i]);
  if (!has_local_momentum()) return {prepared_};
  const float mu = options_.momentum;
  // Nesterov: g + mu (mu v + g).
  const float fresh = options_.nesterov ? 1 + mu : 1;
  const float kept = options_.nesterov ? mu * mu : mu;
  for (std::size_t i = 0; i < prepared_.size(); ++i) prepared_[i] = kept * velocity_[i] + fresh * prepared_[i];
  return {prepared_};
}

void SparseSgd::settle(std::span<const float> weights, const ScaledGradient& gradient) {
  if (!has_local_momentum()) return;
  const Pull pulled = pull(gradient);
  const float mu = options_.momentum;
  for (std::size_t i = 0; i < velocity_.size(); ++i)
    velocity_[i] = mu * velocity_[i] + pulled(gradient.values[i], weights[i]);
  if (options_.factor_masking)
    for (const Index i : sync().sent().idx) velocity_[i] = 0;
}

void SparseSgd::apply_mean(std::span<float> weights, const Update& update) {
  if (!has_global_momentum()) return update.subtract_from(weights);
  if (is_lazy()) {
    ++t_;
    return arrive(weights, update, !update.is_dense());
  }
  const SgdRule<float> rule = global_rule(false);
  const std::span<float> velocity = velocity_;
  for_all(update, [=](std::size_t i, float mean) { weights[i] -= sgd_once(rule, mean, velocity[i]); });
}

// The rate is in the mean already.
SgdRule<float> SparseSgd::global_rule(bool silence_follows) {
  SgdStep step{.momentum = options_.momentum, .nesterov = options_.nesterov};
  step.powers = powers_.up_to(options_.momentum, t_);
  return sgd_rule<float>(step, silence_follows);
}

void SparseSgd::arrive(std::span<float> weights, const Update& update, bool silence_follows) {
  const SgdRule<float> rule = global_rule(silence_follows);
  update.for_each([&](Index i, float sum) {
    weights[i] -= sgd_move(rule, sum, t_ - last_[i], &velocity_[i]);
    last_[i] = t_;
  });
}

// As if it had come along with the last step; silence ends here.
void SparseSgd::apply_flushed(std::span<float> weights, const Update& update) {
  const float reach = has_global_momentum() && options_.nesterov ? 1 + options_.momentum : 1;
  const SgdRule<float> rule = global_rule(false);
  update.for_each([&](Index i, float mean) {
    if (is_lazy() && last_[i] < t_) {
      weights[i] -= sgd_move(rule, mean, t_ - last_[i], &velocity_[i]);
      last_[i] = t_;
      return;
    }
    if (has_global_momentum()) velocity_[i] += mean;
    weights[i] -= reach * mean;
  });
}

std::string SparseSgd::description() const {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text.precision(9);
  text << "sgd, n " << n() << ", momentum " << options_.momentum << ", nesterov " << options_.nesterov
       << ", weight decay " << options_.weight_decay << ", clip norm " << options_.clip_norm << ", sparsify "
       << to_string(options_.sparsify) << ", interval-aware " << options_.interval_aware << ", factor masking "
       << options_.factor_masking << ", look-ahead " << options_.look_ahead;
  return text.str();
}

void SparseSgd::save_to(StateWriter& state) const {
  state.put_all(std::span<const float>(velocity_));
  state.put(t_);
  state.put_all(std::span<const std::uint32_t>(last_));
}

std::function<void()> SparseSgd::read(StateReader& state) {
  auto velocity = state.take_all_finite<float>("momentum");
  require(velocity.size() == velocity_.size(), "state: ", velocity.size(), " values of momentum, but ",
          velocity_.size(), " are needed");
  const auto t = state.take<std::uint32_t>();
  auto last = state.take_all<std::uint32_t>();
  require(last.size() == last_.size() && std::all_of(last.begin(), last.end(), [t](std::uint32_t l) { return l <= t; }),
          "state: ", last.size(), " arrivals that do not fit ", t, " steps");
  return [this, t, velocity = std::move(velocity), last = std::move(last)]() mutable {
    velocity_ = std::move(velocity);
    t_ = t;
    last_ = std::move(last);
  };
}

}  // namespace oktopk
