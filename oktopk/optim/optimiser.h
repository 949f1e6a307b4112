// SPDX-License-Identifier: Apache-2.0
// What every optimiser does around one synchronisation: clip, prepare the gradient, synchronise,
// apply the mean to the weights. SparseSgd (optim/sgd.h) and SparseAdam (optim/adam.h) say how.
// Belongs to one rank; all ranks make the same calls with the same options, and hold bitwise equal
// weights before and after each of them. Formulas and costs: docs/optimisers.md.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oktopk/base/bytes.h"
#include "oktopk/base/state.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/reduce/synchroniser.h"

namespace oktopk {

// What is sparsified.
enum class Sparsify {
  gradients,  // the state of the optimiser is the same on all ranks and sees the sparse mean
  updates,    // each rank keeps a state of its own, and what it would move is sparsified; for SGD
              // this is Deep Gradient Compression's momentum correction
};
std::string_view to_string(Sparsify sparsify);
Sparsify find_sparsify(std::string_view name);

class Optimiser {
 public:
  virtual ~Optimiser() = default;
  Optimiser(const Optimiser&) = delete;
  Optimiser& operator=(const Optimiser&) = delete;

  virtual std::string_view name() const = 0;

  // Where this rank should compute its gradient: `weights`, or with look-ahead a copy of them minus
  // this rank's own unsent updates. Good until the next call.
  std::span<const float> point(std::span<const float> weights);

  // Collective: clips and prepares the gradient, synchronises, applies the mean to `weights`. An
  // empty gradient counts as zeros. After a skipped step, or a UsageError, weights and optimiser
  // are as before. The Update is the synchroniser's.
  // REQUIRES: weights bitwise equal on all ranks. ENSURES: they are so afterwards.
  Update step(std::span<float> weights, std::span<const float> gradient);

  // For callers who synchronise themselves: applies the mean of gradients that were multiplied by
  // scale(). Collective on its first call, as step() is. Clipping, SGD's weight decay and
  // Sparsify::updates need step(): the first two are left to the caller here, the last is a
  // UsageError.
  void apply(std::span<float> weights, const Update& update);
  virtual float scale() const = 0;

  // Collective: applies everything unsent in one dense exchange, and the weight decay that a lazy
  // optimiser still owes. Not a training step: it brings no gradient.
  void flush(std::span<float> weights);

  // What a lazy optimiser still owes to weights that did not arrive, apart from what is unsent:
  // their weight decay. Before weights are used elsewhere. Local; all ranks should do it together.
  virtual void catch_up(std::span<float> /*weights*/) {}

  // For schedules; equal on all ranks.
  void set_learning_rate(float rate);
  float learning_rate() const { return basics_.learning_rate; }
  Synchroniser& synchroniser() { return sync_; }

  // This rank's state and its synchroniser's. Local. write() puts the same into a state of the
  // caller's (StateWriter::put_state).
  Bytes save() const;
  void write(StateWriter& state) const;
  // Collective: continues from what this rank saved, bitwise as if never stopped, the learning rate
  // included. UsageError on every rank, with nothing changed on any, when one rank's state is
  // damaged or of another problem, rank, P or other options.
  void load(std::span<const std::byte> state);
  // Collective: continues from the states of all ranks of an earlier run, in rank order, whatever
  // their number (Synchroniser::load_all). Of a state that is each rank's own (Sparsify::updates)
  // rank r takes over that of rank r mod the number of states.
  void load_all(std::size_t count, const ReadState& read);
  void load_all(std::span<const Bytes> states);

 protected:
  // What all optimisers have among their options.
  struct Basics {
    float learning_rate = 0;
    float clip_norm = 0;
    Sparsify sparsify = Sparsify::gradients;
    bool look_ahead = false;
    float decoupled_decay = 0;
  };
  Optimiser(Synchroniser& sync, const Basics& basics);

  // A gradient of n values and what clipping multiplies it by.
  struct ScaledGradient {
    std::span<const float> values;
    float factor = 1;
  };
  // What a rank adds to its accumulator: scale * values.
  struct Contribution {
    std::span<const float> values;
    float scale = 1;
  };

  bool sparsifies_updates() const { return basics_.sparsify == Sparsify::updates; }
  std::size_t n() const { return n_; }
  const Synchroniser& sync() const { return sync_; }

  // visit(i, mean) for all i < n by increasing i, with a mean of zero where nothing arrived.
  template <class Visit>
  void for_all(const Update& update, Visit visit) const {
    std::size_t i = 0;
    update.for_each([&](Index arrived, float mean) {
      for (; i < arrived; ++i) visit(i, 0.0F);
      visit(i++, mean);
    });
    for (; i < n(); ++i) visit(i, 0.0F);
  }

 private:
  // Changes no state that counts: the step may still be refused or skipped.
  virtual Contribution prepare(std::span<const float> weights, const ScaledGradient& gradient) = 0;
  // The step was made: takes the local state forward. `weights` are still those before the step.
  virtual void settle(std::span<const float> weights, const ScaledGradient& gradient) = 0;
  virtual void apply_mean(std::span<float> weights, const Update& update) = 0;
  virtual void apply_flushed(std::span<float> weights, const Update& update) = 0;
  // All options but the learning rate: must be equal on all ranks and in a state that is loaded.
  virtual std::string description() const = 0;
  virtual void save_to(StateWriter& state) const = 0;
  // Reads all, changes nothing; the function returned makes it this optimiser's state.
  virtual std::function<void()> read(StateReader& state) = 0;

  struct Saved {
    float rate = 0;
    std::function<void()> adopt;
    std::span<const std::byte> synchroniser;  // in the state that was read
  };
  Saved open(std::span<const std::byte> state);
  void adopt(const Saved& saved);

  void check_rate(float rate) const;
  void check_weights(std::span<const float> weights) const;
  void agree();

  Synchroniser& sync_;
  std::size_t n_;
  Basics basics_;
  bool agreed_ = false;
  std::vector<float> zeros_;   // an empty gradient
  std::vector<float> looked_;  // point() with look-ahead
  Workspace work_;
};

}  // namespace oktopk
