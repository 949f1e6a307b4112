// SPDX-License-Identifier: Apache-2.0
// AdamW (Loshchilov & Hutter, ICLR'19, arXiv 1711.05101) over a sparse synchroniser. Interval-aware
// is ours: a coordinate's accumulated gradient that arrives after tau silent steps counts as tau
// steps, not as one huge gradient. What is left of its momentum from before is moved then, and what
// the new one would move in another such silence: none of it is lost. Its second moment averages
// over as many arrivals as Adam's does over steps, since each arrival is one observation. Published
// is how BERT was trained with Ok-Topk (Li & Hoefler, PPoPP'22): silence counts as gradients of
// zero. All are AdamW, to the last bit, when every coordinate arrives in every step. The rule
// itself: adam_rule.h. COST: interval_aware O(k) per sparse step, memory 4n words; published and
// updates O(n), 3n words (published with dense steps only, 2n).
#pragma once

#include <cstdint>

#include "oktopk/optim/interval_clock.h"
#include "oktopk/optim/optimiser.h"
#include "oktopk/optim/power_table.h"
#include "oktopk/optim/tensor_step.h"

namespace oktopk {

enum class AdamMode {
  interval_aware,  // ours: see above
  interval_steps,  // its simpler form: moments age by steps, and a move is all at once
  published,       // silence is a gradient of zero
};
std::string_view to_string(AdamMode mode);
AdamMode find_adam_mode(std::string_view name);

struct AdamOptions {
  float learning_rate = 1e-3F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;
  float weight_decay = 0;                    // decoupled: w *= 1 - learning_rate * weight_decay
  float clip_norm = 0;                       // bounds the norm of the mean gradient; 0: off
  AdamMode mode = AdamMode::interval_aware;  // of Sparsify::gradients
  Sparsify sparsify = Sparsify::gradients;
  bool look_ahead = false;  // with Sparsify::updates only
};

class SparseAdam final : public Optimiser {
 public:
  // REQUIRES: sync outlives the optimiser.
  SparseAdam(Synchroniser& sync, const AdamOptions& options);

  std::string_view name() const override { return "adam"; }
  float scale() const override { return 1.0F; }
  // Applies the weight decay that interval_aware still owes to coordinates that did not arrive.
  // Local; all ranks should do it together. O(n).
  void catch_up(std::span<float> weights) override;

  std::uint32_t steps() const { return t_; }
  std::span<const float> first_moment() const { return m_; }
  std::span<const float> second_moment() const { return v_; }

 private:
  Contribution prepare(std::span<const float> weights, const ScaledGradient& gradient) override;
  void settle(std::span<const float> weights, const ScaledGradient& gradient) override;
  void apply_mean(std::span<float> weights, const Update& update) override;
  void apply_flushed(std::span<float> weights, const Update& update) override;
  std::string description() const override;
  void save_to(StateWriter& state) const override;
  std::function<void()> read(StateReader& state) override;

  bool is_lazy() const;
  bool counts_arrivals() const;
  AdamStep group();
  void apply_everywhere(std::span<float> weights, std::span<const float> mean);
  void arrive(std::span<float> weights, const Update& update, bool silence_follows);
  void decay_all(std::span<float> weights) const;

  AdamOptions options_;
  std::uint32_t t_ = 0;
  std::vector<float> m_;
  std::vector<float> v_;
  IntervalClock clock_;                  // of both interval modes
  std::vector<std::uint32_t> arrivals_;  // of interval_aware, by coordinate
  PowerTable first_powers_;              // of beta1
  PowerTable second_powers_;             // of beta2
  std::vector<float> prepared_;          // of Sparsify::updates; published: the mean with its zeros
};

}  // namespace oktopk
