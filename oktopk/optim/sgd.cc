// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/optim/optimiser.h"
#include "oktopk/optim/tensor_step.h"
#include "oktopk/optim/update_rule.h"

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

// The gradient that SGD sees, times the learning rate. Constants by value: the compiler would read members again after
// each store to a float.
auto pull(float rate, float factor, float decay) {
  return [=](float gradient, float weight) { return rate * (factor * gradient + decay * weight); };
}

// The state of SGD and its steps.
class Sgd final : public UpdateRule {
 public:
  Sgd(Index length, const SgdOptions& options)
      : UpdateRule(length, options),
        options_(options),
        velocity_(options.momentum > 0 ? n : 0, 0.0F),
        last_(is_lazy() ? n : 0, 0) {
    check(options);
  }

  float scale() const override { return learning_rate; }
  std::unique_ptr<UpdateRule> fresh() const override { return std::make_unique<Sgd>(n, options_); }
  ScaledValues prepare(std::span<const float> weights, const ScaledValues& gradient) override {
    if (!has_local_momentum() && options_.weight_decay == 0) return {gradient.values, scale() * gradient.scale};
    prepared_.resize(n);
    const auto pulled = pull(learning_rate, gradient.scale, options_.weight_decay);
    for (std::size_t i = 0; i < n; ++i) prepared_[i] = pulled(gradient.values[i], weights[i]);
    if (!has_local_momentum()) return {prepared_};
    const float mu = options_.momentum;
    // Nesterov: g + mu (mu v + g).
    const float fresh = options_.nesterov ? 1 + mu : 1;
    const float kept = options_.nesterov ? mu * mu : mu;
    for (std::size_t i = 0; i < n; ++i) prepared_[i] = kept * velocity_[i] + fresh * prepared_[i];
    return {prepared_};
  }

  void settle(std::span<const float> weights, const ScaledValues& gradient, std::span<const Index> sent) override {
    if (!has_local_momentum()) return;
    const auto pulled = pull(learning_rate, gradient.scale, options_.weight_decay);
    const float mu = options_.momentum;
    for (std::size_t i = 0; i < n; ++i) velocity_[i] = mu * velocity_[i] + pulled(gradient.values[i], weights[i]);
    if (options_.factor_masking)
      for (const Index i : sent) velocity_[i] = 0;
  }

  void apply_mean(std::span<float> weights, const Update& update) override {
    if (!has_global_momentum()) return update.subtract_from(weights);
    if (is_lazy()) {
      ++t_;
      const SgdRule<float> rule{constants(), !update.is_dense()};
      return update.for_each([&](Index i, float sum) { weights[i] -= move(rule, i, sum); });
    }
    // Momentum moves every weight.
    const TensorState all{
        .size = n, .weights = weights.data(), .mean = dense_mean(update).data(), .first = velocity_.data()};
    sgd_step(std::span(&all, 1), constants(), 1);
  }

  // A flushed sum counts as part of the last step; intervals end here.
  void apply_flushed(std::span<float> weights, const Update& update) override {
    const float reach = has_global_momentum() && options_.nesterov ? 1 + options_.momentum : 1;
    const SgdRule<float> rule{constants(), false};
    update.for_each([&](Index i, float mean) {
      if (is_lazy() && last_[i] < t_) {
        weights[i] -= move(rule, i, mean);
        return;
      }
      if (has_global_momentum()) velocity_[i] += mean;
      weights[i] -= reach * mean;
    });
  }

  std::string description() const override {
    return in_words("sgd, n ", n, ", momentum ", options_.momentum, ", nesterov ", options_.nesterov, ", weight decay ",
                    options_.weight_decay, ", clip norm ", options_.clip_norm, ", sparsify ",
                    to_string(options_.sparsify), ", interval-aware ", options_.interval_aware, ", factor masking ",
                    options_.factor_masking, ", look-ahead ", options_.look_ahead);
  }

  void save(StateWriter& state) const override {
    state.put_all(std::span<const float>(velocity_));
    state.put(t_);
    state.put_all(std::span<const std::uint32_t>(last_));
  }

  void load(StateReader& state) override {
    replace(velocity_, state.take_all_finite<float>("momentum"), "momentum");
    t_ = state.take<std::uint32_t>();
    replace(last_, state.take_all<std::uint32_t>(), "the clocks");
    require(std::ranges::all_of(last_, [&](auto x) { return x <= t_; }), "state: a clock above the ", t_,
            " steps of SGD");
  }

 private:
  bool has_local_momentum() const { return sparsifies_updates && options_.momentum > 0; }
  bool has_global_momentum() const { return !sparsifies_updates && options_.momentum > 0; }
  bool is_lazy() const { return has_global_momentum() && options_.interval_aware; }
  // The learning rate is in the mean already, and so is the weight decay.
  SgdStep constants() {
    return {.momentum = options_.momentum,
            .nesterov = options_.nesterov,
            .clock = {.rate = 1},
            .powers = powers_.up_to(options_.momentum, t_)};
  }

  float move(const SgdRule<float>& rule, Index i, float sum) {
    return sgd_move(rule, sum, t_ - std::exchange(last_[i], t_), &velocity_[i]);
  }

  SgdOptions options_;
  std::vector<float> velocity_;      // with momentum
  std::uint32_t t_ = 0;              // steps made; of interval_aware, as the next two
  std::vector<std::uint32_t> last_;  // by coordinate, the step in which it last arrived
  PowerTable powers_;                // of the momentum
  std::vector<float> prepared_;
};

}  // namespace

SparseSGD::SparseSGD(Synchroniser& sync, const SgdOptions& options)
    : Optimiser(sync, std::make_unique<Sgd>(sync.n(), options)) {}

}  // namespace oktopk
