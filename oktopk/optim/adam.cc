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

}  // namespace

std::string_view to_string(AdamMode mode) { return kAdamModes[static_cast<std::size_t>(mode)].name; }

AdamMode find_adam_mode(std::string_view name) { return find_row(kAdamModes, "Adam mode", name).mode; }

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
}

bool SparseAdam::is_lazy() const { return !sparsifies_updates() && options_.mode != AdamMode::published; }

bool SparseAdam::counts_arrivals() const { return !sparsifies_updates() && options_.mode == AdamMode::interval_aware; }

// Powers only where somebody may have been silent.
AdamStep SparseAdam::group() {
  AdamStep step{.beta1 = options_.beta1,
                .beta2 = options_.beta2,
                .epsilon = options_.epsilon,
                .ages_by_arrivals = counts_arrivals(),
                .clock = clock_.view()};
  if (!is_lazy()) {
    step.clock.rate = learning_rate();
    step.clock.kept = decay_of_one_step(learning_rate(), options_.weight_decay);
    return step;
  }
  step.first = first_powers_.up_to(options_.beta1, t_);
  step.second = second_powers_.up_to(options_.beta2, t_);
  return step;
}

// A step in which `mean` arrives everywhere.
void SparseAdam::apply_everywhere(std::span<float> weights, std::span<const float> mean) {
  const TensorState all{.size = n(),
                        .weights = weights.data(),
                        .mean = mean.data(),
                        .first = m_.data(),
                        .second = v_.data(),
                        .last = is_lazy() ? clock_.last().data() : nullptr,
                        .arrivals = counts_arrivals() ? arrivals_.data() : nullptr,
                        .steps = t_,
                        .caught_up = clock_.caught_up()};
  adam_step(std::span(&all, 1), group(), 1);
}

// The update that this rank would apply to weights of zero.
Optimiser::Contribution SparseAdam::prepare(std::span<const float> /*weights*/, const ScaledGradient& gradient) {
  if (!sparsifies_updates()) return {gradient.values, gradient.factor};
  prepared_.resize(n());
  const auto rule = adam_rule<float>(group(), t_ + 1, false);
  for (std::size_t i = 0; i < prepared_.size(); ++i) {
    float m = m_[i];
    float v = v_[i];
    adam_moments(rule, gradient.factor * gradient.values[i], m, v);
    prepared_[i] = -adam_moved(rule, 0.0F, m, std::sqrt(v));
  }
  return {prepared_};
}

void SparseAdam::settle(std::span<const float> /*weights*/, const ScaledGradient& gradient) {
  if (!sparsifies_updates()) return;
  ++t_;
  const auto rule = adam_rule<float>(group(), t_, false);
  for (std::size_t i = 0; i < m_.size(); ++i) adam_moments(rule, gradient.factor * gradient.values[i], m_[i], v_[i]);
}

void SparseAdam::apply_mean(std::span<float> weights, const Update& update) {
  if (sparsifies_updates()) {
    decay_all(weights);
    return update.subtract_from(weights);
  }
  ++t_;
  if (is_lazy()) clock_.tick(learning_rate());
  if (update.is_dense()) return apply_everywhere(weights, update.dense);
  if (is_lazy()) return arrive(weights, update, true);
  prepared_.assign(n(), 0.0F);  // silence is a gradient of zero
  update.for_each([&](Index i, float sum) { prepared_[i] = sum; });
  apply_everywhere(weights, prepared_);
}

// Where something arrives, or an interval is to end.
void SparseAdam::arrive(std::span<float> weights, const Update& update, bool silence_follows) {
  const auto rule = adam_rule<float>(group(), t_, silence_follows);
  const std::span<std::uint32_t> last = clock_.last();
  update.for_each([&](Index i, float sum) {
    if (sum == 0 && last[i] == clock_.now()) return;
    const AdamCoordinate<float> at{m_[i], v_[i], last[i], counts_arrivals() ? &arrivals_[i] : nullptr};
    weights[i] = adam_arrive(rule, weights[i], sum, clock_.caught_up(), at);
  });
}

void SparseAdam::decay_all(std::span<float> weights) const {
  if (options_.weight_decay == 0) return;
  const auto factor = static_cast<float>(decay_of_one_step(learning_rate(), options_.weight_decay));
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
  arrive(weights, update, false);
}

std::string SparseAdam::description() const {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text.precision(9);
  text << "adam, version 2, n " << n() << ", beta1 " << options_.beta1 << ", beta2 " << options_.beta2 << ", epsilon "
       << options_.epsilon << ", weight decay " << options_.weight_decay << ", clip norm " << options_.clip_norm
       << ", sparsify " << to_string(options_.sparsify) << ", mode " << to_string(options_.mode) << ", look-ahead "
       << options_.look_ahead;
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
  require(clock.now() == (is_lazy() ? t : 0), "state: a clock at step ", clock.now(), ", but Adam at step ", t);
  require(arrivals.size() == arrivals_.size() &&
              std::all_of(arrivals.begin(), arrivals.end(), [t](auto a) { return a <= t; }),
          "state: its counts of arrivals do not fit n = ", n(), " and ", t, " steps");
  return [this, t, m = std::move(m), v = std::move(v), clock = std::move(clock),
          arrivals = std::move(arrivals)]() mutable {
    t_ = t;
    arrivals_ = std::move(arrivals);
    m_ = std::move(m);
    v_ = std::move(v);
    clock_ = std::move(clock);
  };
}

}  // namespace oktopk
