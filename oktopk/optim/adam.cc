// SPDX-License-Identifier: Apache-2.0
#include "oktopk/optim/adam.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <locale>
#include <sstream>

#include "oktopk/base/error.h"
#include "oktopk/base/find_row.h"

namespace oktopk {
namespace {

struct AdamModeName {
  AdamMode mode;
  std::string_view name;
};
constexpr std::array<AdamModeName, 3> kAdamModes = {{{AdamMode::interval_aware, "interval_aware"},
                                                     {AdamMode::interval_steps, "interval_steps"},
                                                     {AdamMode::published, "published"}}};

constexpr std::uint32_t kTabulated = 512;
// An S of more than so many standard deviations says that v is wrong, not that S is rare: a unit
// that was dead has come to life. Then v is taken from S, or the weight would leap.
constexpr float kSurprise = 5;

void check(const AdamOptions& o) {
  const auto check_beta = [](std::string_view name, float beta) {
    require(beta >= 0 && beta < 1, "adam: ", name, " = ", beta, ", but it must be in [0, 1)");
  };
  check_beta("beta1", o.beta1);
  check_beta("beta2", o.beta2);
  require(o.epsilon > 0 && std::isfinite(o.epsilon), "adam: epsilon = ", o.epsilon,
          ", but it must be finite and positive");
  require(!o.look_ahead || o.sparsify == Sparsify::updates,
          "adam: look_ahead with sparsify = gradients, but unsent gradients are not in units of ",
          "weights: it needs sparsify = updates");
}

float power(float base, std::uint32_t exponent) {
  return static_cast<float>(std::pow(double{base}, exponent));
}

float blend(float old, float fresh, float keep) { return keep * old + (1 - keep) * fresh; }

}  // namespace

std::string_view to_string(AdamMode mode) {
  return kAdamModes[static_cast<std::size_t>(mode)].name;
}

AdamMode find_adam_mode(std::string_view name) {
  return find_row(kAdamModes, "Adam mode", name).mode;
}

// How far a weight moves, with the moments' start at zero corrected. Constants by value: through
// members, each store to a float would make the loops read them again.
struct SparseAdam::Mover {
  float first_bias;
  float second_bias;
  float epsilon;

  float operator()(float m, float v, float rate) const { return (*this)(m, v, rate, second_bias); }
  // For a second moment that is not of as many observations as there were steps.
  float operator()(float m, float v, float rate, float bias) const {
    return rate * (m / first_bias) / (std::sqrt(v / bias) + epsilon);
  }
};

SparseAdam::SparseAdam(Synchroniser& sync, const AdamOptions& options)
    : Optimiser(sync, {.learning_rate = options.learning_rate,
                       .clip_norm = options.clip_norm,
                       .sparsify = options.sparsify,
                       .look_ahead = options.look_ahead,
                       .decoupled_decay = options.weight_decay}),
      options_(options),
      m_(n(), 0.0F),
      v_(n(), 0.0F),
      clock_(is_lazy() ? n() : 0, options.weight_decay),
      arrivals_(counts_arrivals() ? n() : 0, 0) {
  check(options);
  for (std::uint32_t tau = 0; is_lazy() && tau < kTabulated; ++tau) table_.push_back(powers(tau));
}

bool SparseAdam::is_lazy() const {
  return !sparsifies_updates() && options_.mode != AdamMode::published;
}

bool SparseAdam::counts_arrivals() const {
  return !sparsifies_updates() && options_.mode == AdamMode::interval_aware;
}

SparseAdam::Powers SparseAdam::powers(std::uint32_t exponent) const {
  if (exponent < table_.size()) return table_[exponent];
  const float first = power(options_.beta1, exponent);
  return {first, power(options_.beta2, exponent),
          options_.beta1 * (1 - first) / (1 - options_.beta1)};
}

// Bias of a second moment of so many observations, for up to as many as there are steps.
void SparseAdam::extend_biases() {
  while (counts_arrivals() && second_bias_.size() <= t_)
    second_bias_.push_back(
        static_cast<float>(1 - std::pow(double{options_.beta2}, second_bias_.size())));
}

// In double, for 1 - beta^t cancels.
SparseAdam::Mover SparseAdam::mover(std::uint32_t step) const {
  return {static_cast<float>(1 - std::pow(double{options_.beta1}, step)),
          static_cast<float>(1 - std::pow(double{options_.beta2}, step)), options_.epsilon};
}

Optimiser::Contribution SparseAdam::prepare(std::span<const float> /*weights*/,
                                            const ScaledGradient& gradient) {
  if (!sparsifies_updates()) return {gradient.values, gradient.factor};
  prepared_.resize(n());
  const Mover move = mover(t_ + 1);
  const Powers beta{options_.beta1, options_.beta2, 0};
  const float rate = learning_rate();
  for (std::size_t i = 0; i < prepared_.size(); ++i) {
    const float g = gradient.factor * gradient.values[i];
    prepared_[i] = move(blend(m_[i], g, beta.first), blend(v_[i], g * g, beta.second), rate);
  }
  return {prepared_};
}

void SparseAdam::settle(std::span<const float> /*weights*/, const ScaledGradient& gradient) {
  if (!sparsifies_updates()) return;
  ++t_;
  const Powers beta{options_.beta1, options_.beta2, 0};
  for (std::size_t i = 0; i < m_.size(); ++i) {
    const float g = gradient.factor * gradient.values[i];
    m_[i] = blend(m_[i], g, beta.first);
    v_[i] = blend(v_[i], g * g, beta.second);
  }
}

void SparseAdam::apply_mean(std::span<float> weights, const Update& update) {
  if (sparsifies_updates()) {
    decay_all(weights);
    return update.subtract_from(weights);
  }
  ++t_;
  if (!is_lazy()) return apply_published(weights, update);
  clock_.tick(learning_rate());
  extend_biases();
  const Mover move = mover(t_);
  const bool silence_follows = !update.is_dense();
  update.for_each([&](Index i, float sum) { arrive(weights[i], i, sum, move, silence_follows); });
}

// S after tau steps. Its mean per step is S / tau; where noise dominates, S^2 / tau estimates the
// mean of the squares.
void SparseAdam::arrive(float& weight, Index i, float sum, const Mover& move,
                        bool silence_follows) {
  // Of a flush that brings more to a coordinate that arrived in the last step: one step.
  const std::uint32_t tau = std::max<std::uint32_t>(clock_.interval(i), 1);
  const Powers keep = powers(tau);
  const float mean = tau == 1 ? sum : sum / static_cast<float>(tau);
  float m = blend(m_[i], mean, keep.first);
  const float rate = clock_.rate_since(i);
  weight *= clock_.decay_since(i);
  if (options_.mode == AdamMode::interval_steps) {
    v_[i] = blend(v_[i], sum * mean, keep.second);
    weight -= move(m, v_[i], rate);
  } else {
    arrivals_[i] = std::min(arrivals_[i] + 1, t_);  // a flush adds none to a step's own
    const float bias = second_bias_[arrivals_[i]];
    v_[i] = blend(v_[i], sum * mean, options_.beta2);
    if (tau > 1) v_[i] = std::max(v_[i], bias * (sum * mean) / (kSurprise * kSurprise));
    if (tau == 1) {
      weight -= move(m, v_[i], rate, bias);
    } else {
      // The mean of m over the tau steps, had S / tau come in each of them; and what m would move
      // in the next tau - 1, where the coordinate is likely to be silent as long again.
      const auto steps = static_cast<float>(tau);
      const Powers ahead = powers(silence_follows ? tau - 1 : 0);
      const float drift = blend(m_[i], mean, keep.carried / steps) + ahead.carried / steps * m;
      weight -= move(drift, v_[i], rate, bias);
      m *= ahead.first;
    }
  }
  m_[i] = m;
  clock_.arrive(i);
}

void SparseAdam::apply_published(std::span<float> weights, const Update& update) {
  decay_all(weights);
  const Mover move = mover(t_);
  const Powers beta{options_.beta1, options_.beta2, 0};
  for_all(update, [=, rate = learning_rate(), m = std::span(m_), v = std::span(v_)](std::size_t i,
                                                                                    float mean) {
    m[i] = blend(m[i], mean, beta.first);
    v[i] = blend(v[i], mean * mean, beta.second);
    weights[i] -= move(m[i], v[i], rate);
  });
}

void SparseAdam::decay_all(std::span<float> weights) const {
  if (options_.weight_decay == 0) return;
  const float factor = decay_of_one_step(learning_rate(), options_.weight_decay);
  for (float& w : weights) w *= factor;
}

void SparseAdam::catch_up(std::span<float> weights) {
  require(weights.size() == n(), "adam: ", weights.size(), " weights, but n = ", n());
  if (is_lazy()) clock_.catch_up(weights);
}

// Intervals end here, steps do not begin: t stays. Published Adam knows no other way to take a
// gradient than a step.
void SparseAdam::apply_flushed(std::span<float> weights, const Update& update) {
  if (sparsifies_updates()) return update.subtract_from(weights);
  bool any = false;
  update.for_each([&](Index, float sum) { any = any || sum != 0; });
  if (any && (t_ == 0 || !is_lazy())) return apply_mean(weights, update);
  if (!is_lazy() || t_ == 0) return;
  clock_.catch_up(weights);
  const Mover move = mover(t_);
  update.for_each([&](Index i, float sum) {
    if (sum != 0 || clock_.interval(i) > 0) arrive(weights[i], i, sum, move, false);
  });
}

std::string SparseAdam::description() const {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text.precision(9);
  text << "adam, n " << n() << ", beta1 " << options_.beta1 << ", beta2 " << options_.beta2
       << ", epsilon " << options_.epsilon << ", weight decay " << options_.weight_decay
       << ", clip norm " << options_.clip_norm << ", sparsify " << to_string(options_.sparsify)
       << ", mode " << to_string(options_.mode) << ", look-ahead " << options_.look_ahead;
  return text.str();
}

void SparseAdam::save_to(StateWriter& state) const {
  state.put(t_);
  state.put_all(std::span<const float>(m_));
  state.put_all(std::span<const float>(v_));
  clock_.save(state);
  state.put_all(std::span<const std::uint32_t>(arrivals_));
}

std::function<void()> SparseAdam::read(StateReader& state) {
  const auto t = state.take<std::uint32_t>();
  auto m = state.take_all_finite<float>("first moment");
  auto v = state.take_all_finite<float>("second moment", 0);
  IntervalClock clock(clock_.n(), options_.weight_decay);
  clock.load(state);
  auto arrivals = state.take_all<std::uint32_t>();
  require(m.size() == n() && v.size() == n(), "state: moments of ", m.size(), " and ", v.size(),
          " values, but n = ", n());
  require(clock.now() == (is_lazy() ? t : 0), "state: a clock at step ", clock.now(),
          ", but Adam at step ", t);
  require(arrivals.size() == arrivals_.size() &&
              std::all_of(arrivals.begin(), arrivals.end(), [t](auto a) { return a <= t; }),
          "state: its counts of arrivals do not fit n = ", n(), " and ", t, " steps");
  return [this, t, m = std::move(m), v = std::move(v), clock = std::move(clock),
          arrivals = std::move(arrivals)]() mutable {
    t_ = t;
    arrivals_ = std::move(arrivals);
    extend_biases();
    m_ = std::move(m);
    v_ = std::move(v);
    clock_ = std::move(clock);
  };
}

}  // namespace oktopk
