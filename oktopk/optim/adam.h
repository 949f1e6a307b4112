// SPDX-License-Identifier: Apache-2.0
// AdamW (Loshchilov & Hutter, ICLR'19, arXiv 1711.05101) over a sparse synchroniser. The interval-aware mode is ours: a
// gradient that a coordinate accumulated over tau steps counts as tau steps, not as one huge gradient. The weight then
// moves by the momentum of those steps and of another such interval, so no momentum is lost; the second moment averages
// over arrivals, because each arrival is one observation. The published mode is how BERT was trained with Ok-Topk (Li &
// Hoefler, PPoPP'22): a step without an arrival is a gradient of zero. All modes are AdamW, to the last bit, when every
// coordinate arrives in every step. The rule of one coordinate: adam_rule.h. COST: interval_aware O(k) per sparse step,
// memory 4n words; published and updates O(n), 3n words (published with dense steps only, 2n).
#pragma once

#include <cstdint>

#include "oktopk/optim/optimiser.h"

namespace oktopk {

enum class AdamMode {
  interval_aware,  // ours
  interval_steps,  // its simpler form: moments age by steps, and momentum does not move ahead
  published,       // a step without an arrival is a gradient of zero
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

  std::uint32_t steps() const;
  std::span<const float> first_moment() const;
  std::span<const float> second_moment() const;
};

}  // namespace oktopk
