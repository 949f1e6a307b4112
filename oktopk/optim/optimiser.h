// SPDX-License-Identifier: Apache-2.0
// Everything that optimisers do around one synchronisation: clip the gradient, prepare it, synchronise, apply the mean
// to the weights. SparseSGD and SparseAdamW add their rules.
// An object belongs to one rank. All ranks make the same calls with the same options, and hold bitwise equal weights
// before and after each call. Formulas and costs: docs/optimisers.md.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "oktopk/base/bytes.h"
#include "oktopk/reduce/synchroniser.h"

namespace oktopk {

enum class Sparsify {
  gradients,  // all ranks hold the same optimiser state, which sees the sparse mean
  updates,    // each rank holds a state of its own and sends its updates; for SGD this is the momentum correction of
              // Deep Gradient Compression
};
std::string_view to_string(Sparsify sparsify);
Sparsify find_sparsify(std::string_view name);

// Collective: the factor of clipping by global norm, min(1, clip_norm / sqrt(sum over the ranks of ||g_r||^2 / P)),
// with equal bits on all ranks. ||mean g|| is at most this root mean square, so the factor bounds the norm of the mean;
// with P = 1 it is the usual clipping. 1 when some gradient is not finite: the synchroniser decides what happens then.
// COST: one pass over the gradient; ceil(log2 P) messages of a few bytes.
float clip_factor(Communicator& comm, Gradient gradient, float clip_norm);

class StateWriter;
class UpdateRule;

class Optimiser {
 public:
  virtual ~Optimiser();
  Optimiser(const Optimiser&) = delete;
  Optimiser& operator=(const Optimiser&) = delete;

  // Where this rank should compute its gradient: `weights`, or with look-ahead a copy of them minus the unsent updates
  // of this rank. Good until the next call.
  std::span<const float> point(std::span<const float> weights);

  // Collective: clips and prepares the gradient, synchronises, applies the mean to `weights`. An empty gradient counts
  // as zeros. A skipped step or a UsageError changes neither weights nor optimiser. The synchroniser owns the Update.
  // REQUIRES: weights bitwise equal on all ranks. ENSURES: the same afterwards.
  Update step(std::span<float> weights, std::span<const float> gradient);

  // For callers who synchronise themselves: applies the mean of gradients that were multiplied by scale(). Collective
  // on its first call. Clipping and SGD's weight decay are left to the caller. Sparsify::updates is a UsageError.
  void apply(std::span<float> weights, const Update& update);
  float scale() const;

  // Collective: applies everything unsent in one dense exchange, and the weight decay that a lazy optimiser still owes.
  // Not a training step: it brings no gradient.
  void flush(std::span<float> weights);

  // Applies the weight decay that a lazy optimiser owes to weights that did not arrive. Call it on all ranks before
  // weights are used elsewhere. Local. COST: O(n).
  void catch_up(std::span<float> weights);

  // For schedules; equal on all ranks.
  void set_learning_rate(float rate);
  float learning_rate() const;
  Synchroniser& synchroniser() { return sync_; }

  // The state of this rank and of its synchroniser. Local. write() puts the same into a state of the caller
  // (StateWriter::put_state).
  Bytes save() const;
  void write(StateWriter& state) const;
  // Collective: continues from what this rank saved, bitwise as if never stopped, the learning rate included.
  // UsageError on every rank, with nothing changed on any, when the state of one rank is damaged, or of another
  // problem, rank, P or other options.
  void load(std::span<const std::byte> state);
  // Collective: continues from the states of all ranks of an earlier run, in rank order, whatever their number
  // (Synchroniser::load_all). With Sparsify::updates, rank r takes the state of rank r mod the number of states.
  void load_all(std::size_t count, const ReadState& read);
  void load_all(std::span<const Bytes> states);

 protected:
  Optimiser(Synchroniser& sync, std::unique_ptr<UpdateRule> rule);
  const UpdateRule& rule() const { return *rule_; }

 private:
  struct Saved {
    std::unique_ptr<UpdateRule> rule;
    std::span<const std::byte> synchroniser;  // in the state that was read
  };
  Saved open(std::span<const std::byte> state) const;
  void check_rate(float rate) const;
  void check_weights(std::span<const float> weights) const;
  void agree();

  Synchroniser& sync_;
  std::unique_ptr<UpdateRule> rule_;
  bool agreed_ = false;
  std::vector<float> zeros_;   // an empty gradient
  std::vector<float> looked_;  // point() with look-ahead
};

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

// SGD over a sparse synchroniser: Algorithm 2 of Ok-Topk (Li & Hoefler, PPoPP'22), with the learning rate inside the
// accumulator: acc += lr g; w -= mean of what is sent. Momentum is either global (after the exchange) or local (before
// it: the momentum correction of Deep Gradient Compression, Lin et al., ICLR'18, arXiv 1712.01887). Interval-aware
// global momentum is ours: a sum that arrives after q silent steps counts as q steps of its mean, and the weight moves
// at once by the momentum of another such interval (after a dense step or a flush: by none). The rule: sgd_rule.h.
// COST: O(k) per sparse step, also with interval-aware momentum (2n words); O(n) and n words with the other kinds of
// momentum, and with weight decay.
class SparseSGD final : public Optimiser {
 public:
  // REQUIRES: sync outlives the optimiser.
  SparseSGD(Synchroniser& sync, const SgdOptions& options);

  // Empty without momentum. With Sparsify::updates each rank has its own.
  std::span<const float> momentum() const;
};

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

// AdamW (Loshchilov & Hutter, ICLR'19, arXiv 1711.05101) over a sparse synchroniser. The interval-aware mode is ours: a
// gradient that a coordinate accumulated over q steps counts as q steps, not as one huge gradient. The weight then
// moves by the momentum of those steps and of another such interval, so no momentum is lost; the second moment averages
// over arrivals, because each arrival is one observation. The published mode is how BERT was trained with Ok-Topk (Li &
// Hoefler, PPoPP'22): a step without an arrival is a gradient of zero. All modes are AdamW, to the last bit, when every
// coordinate arrives in every step. The rule of one coordinate: adam_rule.h. COST: interval_aware O(k) per sparse step,
// memory 4n words; published and updates O(n), 3n words (published with dense steps only, 2n).
class SparseAdamW final : public Optimiser {
 public:
  // REQUIRES: sync outlives the optimiser.
  SparseAdamW(Synchroniser& sync, const AdamOptions& options);

  std::uint32_t steps() const;
  std::span<const float> first_moment() const;
  std::span<const float> second_moment() const;
};

}  // namespace oktopk
