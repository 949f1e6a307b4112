// SPDX-License-Identifier: Apache-2.0
// SGD over a sparse synchroniser: Algorithm 2 of Ok-Topk (Li & Hoefler, PPoPP'22), with the learning rate inside the
// accumulator: acc += lr g; w -= mean of what is sent. Momentum is either global (after the exchange) or local (before
// it: the momentum correction of Deep Gradient Compression, Lin et al., ICLR'18, arXiv 1712.01887). Interval-aware
// global momentum is ours: a sum that arrives after tau steps counts as tau steps of its mean, and the weight moves at
// once by the momentum of another such interval (after a dense step or a flush: by none). The rule: sgd_rule.h.
// COST: O(k) per sparse step, also with interval-aware momentum (2n words); O(n) and n words with the other kinds of
// momentum, and with weight decay.
#pragma once

#include "oktopk/optim/optimiser.h"

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

  // Empty without momentum. With Sparsify::updates each rank has its own.
  std::span<const float> momentum() const;
};

}  // namespace oktopk
