// SPDX-License-Identifier: Apache-2.0
// What optimisers need of whoever synchronises gradients: one flat gradient in, the mean update
// out. Reducer does it in one piece, BucketedReducer tensor by tensor, NodeReducer node by node.
#pragma once

#include <functional>
#include <span>

#include "oktopk/base/bytes.h"
#include "oktopk/base/state.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/device/gradient.h"
#include "oktopk/reduce/update.h"

namespace oktopk {

// Seconds of the last step on this rank.
struct StepTimes {
  double check = 0;     // of the gradient, before anything changes
  double select = 0;    // accumulate and select
  double exchange = 0;  // the allreduce, with its sums and codecs, and the wait for slower ranks
  double settle = 0;    // residual rule, mean
  double inside = 0;    // the node's sum and sharing its update, with the wait for its ranks
};

// The bytes of the state that a rank of an earlier run saved; good until the next call.
using ReadState = std::function<std::span<const std::byte>(std::size_t rank)>;

class Synchroniser {
 public:
  virtual ~Synchroniser() = default;

  virtual Communicator& comm() const = 0;
  virtual Index n() const = 0;

  // Collective. Adds scale * gradient to what is unsent and synchronises.
  virtual Update step(Gradient gradient, float scale = 1.0F) = 0;

  // Collective. Applies everything that is unsent, residuals and owner memory, in one dense
  // exchange; afterwards nothing is left. Not a training step: counters and thresholds stay.
  virtual Update flush() = 0;

  // What this rank sent in the last step; empty after a dense one.
  virtual CooView sent() const = 0;
  // x -= this rank's residual.
  virtual void subtract_unsent(std::span<float> x) const = 0;
  // sqrt of the sum of squares of this rank's residual and owner memory.
  virtual double unsent_norm() const = 0;
  virtual StepTimes times() const = 0;

  // This rank's state; everything that later steps depend on. Local. Needs no more memory than the
  // state itself. write() puts the same into a state of the caller's (StateWriter::put_state).
  Bytes save() const {
    return write_state([&](StateWriter& state) { write(state); });
  }
  virtual void write(StateWriter& state) const = 0;
  // Collective: continues from what this rank saved, bitwise as if never stopped. UsageError on
  // every rank, with nothing changed on any, when one rank's state is damaged or of another
  // problem, rank, P or other options.
  virtual void load(std::span<const std::byte> state) = 0;
  // Collective: continues from the states that the ranks of an earlier run saved, in rank order,
  // whatever their number and their options were. What was owed to the weights is owed still:
  // (sum of residuals + owner memory) / P is conserved. Thresholds and cuts start anew, unless each
  // rank finds its own state. The same guarantees when something is wrong.
  // read(r) gives the state of rank r < count, and is called again and again, in any order: only
  // what it gave last must stay. So no rank needs more than one state at a time.
  virtual void load_all(std::size_t count, const ReadState& read) = 0;
  void load_all(std::span<const Bytes> states) {
    load_all(states.size(), [&](std::size_t r) { return std::span<const std::byte>(states[r]); });
  }
};

}  // namespace oktopk
