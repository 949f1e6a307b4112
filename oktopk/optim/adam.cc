// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/base/find_row.h"
#include "oktopk/optim/interval_clock.h"
#include "oktopk/optim/optimiser.h"
#include "oktopk/optim/tensor_step.h"
#include "oktopk/optim/update_rule.h"

namespace oktopk {
namespace {

constexpr EnumNames<AdamMode, 2> kAdamModes("Adam mode", "interval_aware", "published");

void check(const AdamOptions& o) {
  for (const auto& [name, beta] : {std::pair("beta1", o.beta1), std::pair("beta2", o.beta2)})
    require(beta >= 0 && beta < 1, "adam: ", name, " = ", beta, ", but it must be in [0, 1)");
  require(o.epsilon > 0 && std::isfinite(o.epsilon), "adam: epsilon = ", o.epsilon,
          ", but it must be finite and positive");
  require(!o.look_ahead || o.sparsify == Sparsify::updates,
          "adam: look_ahead with sparsify = gradients, but unsent gradients are not in units of ",
          "weights: it needs sparsify = updates");
}

// The state of Adam and its steps.
class Adam final : public UpdateRule {
 public:
  Adam(Index length, const AdamOptions& options)
      : UpdateRule(length, options),
        options_(options),
        m_(n, 0.0F),
        v_(n, 0.0F),
        last_(is_lazy() ? n : 0, 0),
        arrivals_(is_lazy() ? n : 0, 0) {
    decoupled_decay = options.weight_decay;
    check(options);
  }

  float scale() const override { return 1.0F; }
  std::unique_ptr<UpdateRule> fresh() const override { return std::make_unique<Adam>(n, options_); }
  // With Sparsify::updates: the update that this rank would apply to weights of zero.
  ScaledValues prepare(std::span<const float> /*weights*/, const ScaledValues& gradient) override {
    if (!sparsifies_updates) return gradient;
    prepared_.resize(n);
    const AdamRule<float> rule{constants(), t_ + 1, false};
    for (std::size_t i = 0; i < n; ++i) {
      float mean = m_[i];
      float square = v_[i];
      adam_moments(rule, gradient.scale * gradient.values[i], mean, square);
      prepared_[i] = -adam_moved(rule, 0.0F, mean, std::sqrt(square));
    }
    return {prepared_};
  }

  void settle(std::span<const float> /*weights*/, const ScaledValues& gradient,
              std::span<const Index> /*sent*/) override {
    if (!sparsifies_updates) return;
    ++t_;
    const AdamRule<float> rule{constants(), t_, false};
    for (std::size_t i = 0; i < n; ++i) adam_moments(rule, gradient.scale * gradient.values[i], m_[i], v_[i]);
  }

  void apply_mean(std::span<float> weights, const Update& update) override {
    if (sparsifies_updates) {
      const auto kept = static_cast<float>(decay_of_one_step(learning_rate, options_.weight_decay));
      if (options_.weight_decay != 0)
        for (float& w : weights) w *= kept;
      return update.subtract_from(weights);
    }
    ++t_;
    if (is_lazy()) clock_.tick(learning_rate, options_.weight_decay);
    if (is_lazy() && !update.is_dense()) return arrive(weights, update, true);
    const TensorState all{.size = n,
                          .weights = weights.data(),
                          .mean = dense_mean(update).data(),
                          .first = m_.data(),
                          .second = v_.data(),
                          .last = is_lazy() ? last_.data() : nullptr,
                          .arrivals = is_lazy() ? arrivals_.data() : nullptr,
                          .steps = t_,
                          .caught_up = caught_up_};
    adam_step(std::span(&all, 1), constants(), 1);
  }

  // A flush ends intervals and begins no step, so t_ stays. Published Adam, and Adam before its first step, have no
  // other way to apply a gradient than a step.
  void apply_flushed(std::span<float> weights, const Update& update) override {
    if (sparsifies_updates) return update.subtract_from(weights);
    if (t_ == 0 || !is_lazy()) {
      bool any = false;
      update.for_each([&](Index, float sum) { any = any || sum != 0; });
      if (any) apply_mean(weights, update);
      return;
    }
    catch_up(weights);
    arrive(weights, update, false);
  }

  void catch_up(std::span<float> weights) override {
    if (!is_lazy()) return;
    const ClockView clock = clock_.view();
    if (clock_.has_decayed() && caught_up_ < clock.now)
      for (std::size_t i = 0; i < weights.size(); ++i)
        weights[i] *= static_cast<float>(kept_since(clock, std::max(last_[i], caught_up_)));
    caught_up_ = clock.now;
  }

  std::string description() const override {
    return in_words("adam, version 2, n ", n, ", beta1 ", options_.beta1, ", beta2 ", options_.beta2, ", epsilon ",
                    options_.epsilon, ", weight decay ", options_.weight_decay, ", clip norm ", options_.clip_norm,
                    ", sparsify ", to_string(options_.sparsify), ", mode ", to_string(options_.mode), ", look-ahead ",
                    options_.look_ahead);
  }

  void save(StateWriter& state) const override {
    state.put(t_);
    state.put_all(std::span<const float>(m_));
    state.put_all(std::span<const float>(v_));
    state.put(caught_up_);
    state.put_all(std::span<const std::uint32_t>(last_));
    clock_.save(state);
    state.put_all(std::span<const std::uint32_t>(arrivals_));
  }

  void load(StateReader& state) override {
    t_ = state.take<std::uint32_t>();
    replace(m_, state.take_all_finite<float>("first moment"), "the first moment");
    replace(v_, state.take_all_finite<float>("second moment", 0), "the second moment");
    caught_up_ = state.take<std::uint32_t>();
    replace(last_, state.take_all<std::uint32_t>(), "the clocks");
    clock_.load(state, t_);
    replace(arrivals_, state.take_all<std::uint32_t>(), "the counts of arrivals");
    require(clock_.now() == (is_lazy() ? t_ : 0), "state: a clock at step ", clock_.now(), ", but Adam at step ", t_);
    const auto within = [&](const auto& steps) { return std::ranges::all_of(steps, [&](auto x) { return x <= t_; }); };
    require(caught_up_ <= clock_.now() && within(last_) && within(arrivals_), "state: a clock or a count of arrivals ",
            "above the ", t_, " steps of Adam");
  }

 private:
  // Interval-aware Adam touches a coordinate only when it arrives.
  bool is_lazy() const { return !sparsifies_updates && options_.mode == AdamMode::interval_aware; }
  // Powers only where intervals may be longer than a step.
  AdamStep constants() {
    AdamStep step{
        .beta1 = options_.beta1, .beta2 = options_.beta2, .epsilon = options_.epsilon, .clock = clock_.view()};
    if (is_lazy()) {
      step.first = powers1_.up_to(options_.beta1, t_);
      step.second = powers2_.up_to(options_.beta2, t_);
    } else {
      step.clock.rate = learning_rate;
      step.clock.kept = decay_of_one_step(learning_rate, options_.weight_decay);
    }
    return step;
  }

  // An entry of zero for a coordinate that arrived in this step already is no arrival.
  void arrive(std::span<float> weights, const Update& update, bool silence_follows) {
    const AdamRule<float> rule{constants(), t_, silence_follows};
    update.for_each([&](Index i, float sum) {
      if (sum == 0 && last_[i] == clock_.now()) return;
      weights[i] = adam_arrive(rule, weights[i], sum, caught_up_, {m_[i], v_[i], last_[i], arrivals_[i]});
    });
  }

  AdamOptions options_;
  std::uint32_t t_ = 0;  // steps made
  std::vector<float> m_;
  std::vector<float> v_;
  IntervalClock clock_;                  // of interval_aware, as the next three
  std::vector<std::uint32_t> last_;      // by coordinate, the step in which it last arrived
  std::vector<std::uint32_t> arrivals_;  // by coordinate, the age of v in steps
  std::uint32_t caught_up_ = 0;          // the step up to which all weights are decayed
  PowerTable powers1_;                   // of beta1
  PowerTable powers2_;                   // of beta2
  std::vector<float> prepared_;          // of Sparsify::updates
};

}  // namespace

std::string_view to_string(AdamMode mode) { return kAdamModes[mode]; }
AdamMode find_adam_mode(std::string_view name) { return kAdamModes.find(name); }

SparseAdamW::SparseAdamW(Synchroniser& sync, const AdamOptions& options)
    : Optimiser(sync, std::make_unique<Adam>(sync.n(), options)) {}

}  // namespace oktopk
