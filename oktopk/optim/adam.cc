// SPDX-License-Identifier: Apache-2.0
#include "oktopk/optim/optimiser.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/base/find_row.h"
#include "oktopk/optim/interval_clock.h"
#include "oktopk/optim/tensor_step.h"
#include "oktopk/optim/update_rule.h"

namespace oktopk {
namespace {

struct AdamModeName {
  AdamMode mode;
  std::string_view name;
};
constexpr auto kAdamModes = std::to_array<AdamModeName>({{AdamMode::interval_aware, "interval_aware"},
                                                         {AdamMode::interval_steps, "interval_steps"},
                                                         {AdamMode::published, "published"}});

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
  Adam(std::size_t n, const AdamOptions& options)
      : UpdateRule({.n = n,
                    .learning_rate = options.learning_rate,
                    .clip_norm = options.clip_norm,
                    .sparsify = options.sparsify,
                    .look_ahead = options.look_ahead,
                    .decoupled_decay = options.weight_decay}),
        m(n, 0.0F),
        v(n, 0.0F),
        options_(options),
        last_(is_lazy() ? n : 0, 0),
        arrivals_(counts_arrivals() ? n : 0, 0) {
    check(options);
  }

  float scale() const override { return 1.0F; }
  std::unique_ptr<UpdateRule> fresh() const override { return std::make_unique<Adam>(n(), options_); }
  // With Sparsify::updates: the update that this rank would apply to weights of zero.
  ScaledValues prepare(std::span<const float> /*weights*/, const ScaledValues& gradient) override {
    if (!sparsifies_updates()) return gradient;
    prepared_.resize(n());
    const auto rule = adam_rule<float>(constants(), t + 1, false);
    for (std::size_t i = 0; i < n(); ++i) {
      float mean = m[i];
      float square = v[i];
      adam_moments(rule, gradient.scale * gradient.values[i], mean, square);
      prepared_[i] = -adam_moved(rule, 0.0F, mean, std::sqrt(square));
    }
    return {prepared_};
  }

  void settle(std::span<const float> /*weights*/, const ScaledValues& gradient,
              std::span<const Index> /*sent*/) override {
    if (!sparsifies_updates()) return;
    ++t;
    const auto rule = adam_rule<float>(constants(), t, false);
    for (std::size_t i = 0; i < n(); ++i) adam_moments(rule, gradient.scale * gradient.values[i], m[i], v[i]);
  }

  void apply_mean(std::span<float> weights, const Update& update) override {
    if (sparsifies_updates()) {
      const auto kept = static_cast<float>(decay_of_one_step(basics.learning_rate, options_.weight_decay));
      if (options_.weight_decay != 0)
        for (float& w : weights) w *= kept;
      return update.subtract_from(weights);
    }
    ++t;
    if (is_lazy()) clock_.tick(basics.learning_rate, options_.weight_decay);
    if (update.is_dense()) return apply_everywhere(weights, update.dense);
    if (is_lazy()) return arrive(weights, update, true);
    prepared_.assign(n(), 0.0F);
    update.for_each([&](Index i, float sum) { prepared_[i] = sum; });
    apply_everywhere(weights, prepared_);
  }

  // A flush ends intervals and begins no step, so t stays. Published Adam, and Adam before its first step, have no
  // other way to apply a gradient than a step.
  void apply_flushed(std::span<float> weights, const Update& update) override {
    if (sparsifies_updates()) return update.subtract_from(weights);
    if (t == 0 || !is_lazy()) {
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
    return in_words("adam, version 2, n ", n(), ", beta1 ", options_.beta1, ", beta2 ", options_.beta2, ", epsilon ",
                    options_.epsilon, ", weight decay ", options_.weight_decay, ", clip norm ", options_.clip_norm,
                    ", sparsify ", to_string(options_.sparsify), ", mode ", to_string(options_.mode), ", look-ahead ",
                    options_.look_ahead);
  }

  void save(StateWriter& state) const override {
    state.put(t);
    state.put_all(std::span<const float>(m));
    state.put_all(std::span<const float>(v));
    state.put(caught_up_);
    state.put_all(std::span<const std::uint32_t>(last_));
    clock_.save(state);
    state.put_all(std::span<const std::uint32_t>(arrivals_));
  }

  void load(StateReader& state) override {
    const std::size_t clocks = last_.size();
    const std::size_t counts = arrivals_.size();
    t = state.take<std::uint32_t>();
    m = state.take_all_finite<float>("first moment");
    v = state.take_all_finite<float>("second moment", 0);
    caught_up_ = state.take<std::uint32_t>();
    last_ = state.take_all<std::uint32_t>();
    clock_.load(state);
    arrivals_ = state.take_all<std::uint32_t>();
    require(m.size() == n() && v.size() == n(), "state: moments of ", m.size(), " and ", v.size(),
            " values, but n = ", n());
    require(last_.size() == clocks, "state: ", last_.size(), " clocks, but n = ", n());
    require(clock_.now() == (is_lazy() ? t : 0), "state: a clock at step ", clock_.now(), ", but Adam at step ", t);
    const auto within = [&](const auto& steps) { return std::ranges::all_of(steps, [&](auto x) { return x <= t; }); };
    require(caught_up_ <= clock_.now() && within(last_), "state: a clock that is ahead of its ", t, " steps");
    require(arrivals_.size() == counts && within(arrivals_), "state: its counts of arrivals do not fit n = ", n(),
            " and ", t, " steps");
  }

  std::uint32_t t = 0;  // steps made
  std::vector<float> m;
  std::vector<float> v;

 private:
  // Both interval modes touch a coordinate only when it arrives.
  bool is_lazy() const { return !sparsifies_updates() && options_.mode != AdamMode::published; }
  bool counts_arrivals() const { return is_lazy() && options_.mode == AdamMode::interval_aware; }
  // Powers only where intervals may be longer than a step.
  AdamStep constants() {
    AdamStep step{.beta1 = options_.beta1,
                  .beta2 = options_.beta2,
                  .epsilon = options_.epsilon,
                  .ages_by_arrivals = counts_arrivals(),
                  .clock = clock_.view()};
    if (is_lazy()) {
      step.first = powers1_.up_to(options_.beta1, t);
      step.second = powers2_.up_to(options_.beta2, t);
    } else {
      step.clock.rate = basics.learning_rate;
      step.clock.kept = decay_of_one_step(basics.learning_rate, options_.weight_decay);
    }
    return step;
  }

  // A step in which every coordinate arrives.
  void apply_everywhere(std::span<float> weights, std::span<const float> mean) {
    const TensorState all{.size = n(),
                          .weights = weights.data(),
                          .mean = mean.data(),
                          .first = m.data(),
                          .second = v.data(),
                          .last = is_lazy() ? last_.data() : nullptr,
                          .arrivals = counts_arrivals() ? arrivals_.data() : nullptr,
                          .steps = t,
                          .caught_up = caught_up_};
    adam_step(std::span(&all, 1), constants(), 1);
  }

  // An entry of zero for a coordinate that arrived in this step already is no arrival.
  void arrive(std::span<float> weights, const Update& update, bool silence_follows) {
    const auto rule = adam_rule<float>(constants(), t, silence_follows);
    update.for_each([&](Index i, float sum) {
      if (sum == 0 && last_[i] == clock_.now()) return;
      const AdamCoordinate<float> at{m[i], v[i], last_[i], counts_arrivals() ? &arrivals_[i] : nullptr};
      weights[i] = adam_arrive(rule, weights[i], sum, caught_up_, at);
    });
  }

  AdamOptions options_;
  IntervalClock clock_;                  // of both interval modes, as the next two
  std::vector<std::uint32_t> last_;      // by coordinate, the step in which it last arrived
  std::uint32_t caught_up_ = 0;          // the step up to which all weights are decayed
  std::vector<std::uint32_t> arrivals_;  // of interval_aware, by coordinate
  PowerTable powers1_;                   // of beta1
  PowerTable powers2_;                   // of beta2
  std::vector<float> prepared_;          // of Sparsify::updates; published: the mean with its zeros
};

}  // namespace

std::string_view to_string(AdamMode mode) { return kAdamModes[static_cast<std::size_t>(mode)].name; }

AdamMode find_adam_mode(std::string_view name) { return find_row(kAdamModes, "Adam mode", name).mode; }

SparseAdamW::SparseAdamW(Synchroniser& sync, const AdamOptions& options)
    : Optimiser(sync, std::make_unique<Adam>(sync.n(), options)) {}

std::uint32_t SparseAdamW::steps() const { return static_cast<const Adam&>(rule()).t; }
std::span<const float> SparseAdamW::first_moment() const { return static_cast<const Adam&>(rule()).m; }
std::span<const float> SparseAdamW::second_moment() const { return static_cast<const Adam&>(rule()).v; }

}  // namespace oktopk
