// SPDX-License-Identifier: Apache-2.0
// One training step's synchronisation of one flat gradient: accumulate, select, exchange, settle.
// Belongs to one rank; all ranks make the same calls. Memory: n floats of residual, n/P of owner
// memory where the rule has one, O(k) of buffers.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "oktopk/allreduce/presets.h"
#include "oktopk/device/device.h"
#include "oktopk/optim/residual.h"

namespace oktopk {

struct ReducerOptions {
  std::string preset = "circulant";
  std::size_t k = 0;                                    // entries per step; 0: by density
  double density = 0.01;                                // k = density * n, at least 1
  std::optional<SelectorKind> selector = std::nullopt;  // default: the preset's own
  AllreduceOptions allreduce = {};                      // codec, skips, residual rule, intervals
};

class Reducer {
 public:
  // REQUIRES: comm outlives the Reducer. Local: nothing is sent yet.
  Reducer(Communicator& comm, Index n, const ReducerOptions& options);

  // Collective. Adds scale * gradient to the residual and synchronises: outcome.update (or
  // dense_update) is the sum over the ranks, to be divided by P and applied. An empty gradient adds
  // nothing. After a UsageError nothing has changed, except when the
  // accumulator itself overflowed.
  const Outcome& step(std::span<const float> gradient, float scale = 1.0F);

  // Drops what was not applied yet, here and in owner memory; thresholds and cuts stay. Local, but
  // all ranks should do it together.
  void forget();

  Index n() const { return static_cast<Index>(residual_.size()); }
  std::size_t k() const { return k_; }
  // Of the last step.
  const SparseVector& selection() const { return selection_; }
  const Outcome& outcome() const { return outcome_; }
  std::span<const float> residual() const { return residual_; }
  OwnerMemory memory() const { return allreduce_->memory(); }
  const Allreduce& allreduce() const { return *allreduce_; }

 private:
  void accumulate_all(std::span<const float> gradient, float scale);

  Communicator& comm_;
  std::size_t k_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Selector> selector_;
  std::unique_ptr<Allreduce> allreduce_;
  std::unique_ptr<ResidualRule> rule_;
  std::vector<float> residual_;
  SparseVector selection_;
  Outcome outcome_;
};

}  // namespace oktopk
