// SPDX-License-Identifier: Apache-2.0
// SGD over a sparse synchroniser: Algorithm 2 of Ok-Topk (Li & Hoefler, PPoPP'22), with the
// learning rate inside the accumulator: acc += lr g; w -= mean of what is sent. With momentum,
// either global (after the exchange) or local (before it: the momentum correction of Deep Gradient
// Compression, Lin et al., ICLR'18, arXiv 1712.01887). Interval-aware global momentum is ours: what
// arrives after tau silent steps counts as tau steps of its mean, and is moved at once to where
// momentum would bring it by the end of another such silence (after a dense step or a flush: by
// now); published, it would only start to move. The rule itself: sgd_rule.h.
//
// COST: O(k) per sparse step, with interval-aware momentum too (2n words); O(n) and n words with
// the other kinds of momentum, and with weight decay.
#pragma once

#include "oktopk/optim/optimiser.h"
#include "oktopk/optim/power_table.h"
#include "oktopk/optim/sgd_rule.h"

namespace oktopk {

struct SgdOptions {
  float learning_rate = 0.1F;
  float momentum = 0;
  bool nesterov = false;
  float weight_decay = 0;  // coupled: added to the gradient, after clipping
  float clip_norm = 0;     // bounds the norm of the mean gradient; 0: off
  Sparsify sparsify = Sparsify::gradients;
  bool interval_aware = true;   // with gradients: momentum moves when its coordinate arrives
  bool factor_masking = false;  // with updates: momentum is cleared where this rank just sent
  bool look_ahead = false;
};

class SparseSgd final : public Optimiser {
 public:
  // REQUIRES: sync outlives the optimiser.
  SparseSgd(Synchroniser& sync, const SgdOptions& options);

  std::string_view name() const override { return "sgd"; }
  float scale() const override { return learning_rate(); }
  // Empty without momentum. With Sparsify::updates it is this rank's own.
  std::span<const float> momentum() const { return velocity_; }

 private:
  Contribution prepare(std::span<const float> weights, const ScaledGradient& gradient) override;
  void settle(std::span<const float> weights, const ScaledGradient& gradient) override;
  void apply_mean(std::span<float> weights, const Update& update) override;
  void apply_flushed(std::span<float> weights, const Update& update) override;
  std::string description() const override;
  void save_to(StateWriter& state) const override;
  std::function<void()> read(StateReader& state) override;

  struct Pull;
  Pull pull(const ScaledGradient& gradient) const;
  // Momentum of the mean, after the exchange.
  bool has_global_momentum() const { return !sparsifies_updates() && options_.momentum > 0; }
  bool is_lazy() const { return has_global_momentum() && options_.interval_aware; }
  SgdRule<float> global_rule(bool silence_follows);
  void arrive(std::span<float> weights, const Update& update, bool silence_follows);

  bool has_local_momentum() const { return sparsifies_updates() && options_.momentum > 0; }

  SgdOptions options_;
  std::vector<float> velocity_;
  std::uint32_t t_ = 0;              // steps made; of interval_aware, as the next two
  std::vector<std::uint32_t> last_;  // the step in which each coordinate arrived
  PowerTable powers_;                // of the momentum
  std::vector<float> prepared_;
};

}  // namespace oktopk
