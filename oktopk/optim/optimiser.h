// SPDX-License-Identifier: Apache-2.0
// SparseSGD and SparseAdamW over any synchroniser: clip the gradient, prepare it, synchronise, apply the mean to the
// weights. An object belongs to one rank. All ranks make the same calls with the same options, and hold bitwise equal
// weights before and after each call. Formulas and costs: docs/optimisers.md.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "oktopk/base/bytes.h"
#include "oktopk/reduce/synchroniser.h"

namespace oktopk {

enum class Sparsify {
  gradients,  // all ranks hold the same optimiser state, which sees the sparse mean
  updates,    // each rank holds its own state and sends its updates; SGD: as in Deep Gradient Compression
};
std::string_view to_string(Sparsify sparsify);
Sparsify find_sparsify(std::string_view name);

// Collective: the factor of clipping by global norm, min(1, clip_norm / sqrt(sum over the ranks of ||g_r||^2 / P)),
// which bounds the norm of the mean; with equal bits on all ranks. 1 when some gradient is not finite: the synchroniser
// decides what happens then. UsageError unless clip_norm is positive. COST: one pass over the gradient; ceil(log2 P)
// messages of a few bytes.
float clip_factor(Communicator& comm, Gradient gradient, float clip_norm);

class StateReader;
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

  // Collective: applies everything unsent in one dense exchange, and catches up. Not a training step.
  void flush(std::span<float> weights);

  // Applies the weight decay that interval-aware Adam owes to weights that did not arrive. Call it on all ranks before
  // weights are used elsewhere. Local. COST: O(n).
  void catch_up(std::span<float> weights);

  // For schedules; equal on all ranks.
  void set_learning_rate(float rate);
  float learning_rate() const;
  Synchroniser& synchroniser() { return sync_; }

  // State of this rank and of its synchroniser, with the guarantees of Synchroniser::save(), load() and load_all(). The
  // learning rate is part of it. With Sparsify::updates, load_all() gives rank r the optimiser state of rank r mod
  // `count`. write() puts the state into one of the caller (StateWriter::put_state).
  Bytes save() const;
  void write(StateWriter& state) const;
  void load(std::span<const std::byte> state);
  // The part that is equal on all ranks, for a rank that joins a run (ElasticHooks): the optimiser without its
  // synchroniser. Local. UsageError with Sparsify::updates, where each rank has a state of its own.
  Bytes save_shared() const;
  void load_shared(std::span<const std::byte> state);
  void load_all(std::size_t count, const ReadState& read);

 protected:
  Optimiser(Synchroniser& sync, std::unique_ptr<UpdateRule> rule);

 private:
  // A rule, and the state of the synchroniser as a view.
  using Saved = std::pair<std::unique_ptr<UpdateRule>, std::span<const std::byte>>;
  Saved open(std::span<const std::byte> state) const;
  void write_rule(StateWriter& state) const;
  std::unique_ptr<UpdateRule> read_rule(StateReader& state) const;
  void check_weights(std::span<const float> weights) const;
  void agree(std::string_view call = "step()");

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
// it: Deep Gradient Compression, Lin et al., ICLR'18, arXiv 1712.01887). Interval-aware global momentum is ours: a sum
// that arrives after q silent steps counts as q steps of its mean.
// COST: O(k) per sparse step without momentum or with interval-aware momentum (2n words), unless there is weight decay;
// otherwise O(n), and n words each for momentum and a prepared vector.
class SparseSGD final : public Optimiser {
 public:
  // REQUIRES: sync outlives the optimiser.
  SparseSGD(Synchroniser& sync, const SgdOptions& options);
};

enum class AdamMode {
  interval_aware,  // ours: a sum that arrives after tau steps counts as tau steps
  published,       // Ok-Topk: a step without an arrival is a gradient of zero
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

// AdamW (Loshchilov & Hutter, ICLR'19, arXiv 1711.05101) over a sparse synchroniser. Both modes are AdamW, to the last
// bit, when every coordinate arrives in every step. COST: interval_aware O(k) per sparse step, memory 4n words;
// published and updates O(n), 3n words (published with dense steps only, 2n).
class SparseAdamW final : public Optimiser {
 public:
  // REQUIRES: sync outlives the optimiser.
  SparseAdamW(Synchroniser& sync, const AdamOptions& options);
};

}  // namespace oktopk
