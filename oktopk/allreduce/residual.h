// SPDX-License-Identifier: Apache-2.0
// The unsent mass of this rank, and the rules by which a step changes it.
//
// Residual: n floats that every step visits once, in the pass that adds the gradient. Clearing the sent entries at once
// would be k writes all over memory. So their indices are only noted, and the pass of the next step clears them. All
// other access clears them first.
#pragma once

#include <span>
#include <string_view>

#include "oktopk/allreduce/presets.h"
#include "oktopk/device/device.h"

namespace oktopk {

class Residual {
 public:
  // REQUIRES: device outlives the residual.
  Residual(const Device& device, Index n) : device_(device), memory_(device.allocate(n)), values_(memory_.get(), n) {}

  std::size_t size() const { return values_.size(); }
  std::span<const float> values() const;  // in the device's memory

  // The input of the pass that adds a gradient and clears what is due; accumulated() must follow it.
  Accumulation begin(Gradient gradient, float scale) { return {values_, gradient, scale, to_clear_}; }
  void accumulated() { to_clear_.clear(); }

  // idx is increasing. Indices of an earlier call are cleared before idx is noted.
  void clear_later(std::span<const Index> idx);
  void add(CooView v);
  // Adds the entries of v whose index is in idx. Both are increasing.
  void add_common(CooView v, std::span<const Index> idx);
  // Adds scale * host: n values in host memory.
  void add_host(std::span<const float> host, float scale);
  void multiply(float factor);
  // Takes n values from host memory; none: all become zero.
  void assign(std::span<const float> host = {});

 private:
  void settle() const;

  const Device& device_;
  DeviceFloats memory_;
  // The logical value is values_ with the entries at to_clear_ zeroed.
  std::span<float> values_;
  mutable Uninitialised<Index> to_clear_;
  SparseVector common_;
};

// A residual rule: which mass of a step stays on this rank. The table in residual.cc is the home of every
// rule; presets.cc lists which rules fit a preset. Together with owner memory m, a rule that fits conserves mass: sum
// of accumulators + m = update + sum of residuals + m'. (gtopk prunes, so its published rule, sender keeps, does not
// fit.)
struct ResidualRule {
  ResidualKind kind;
  std::string_view name;
  // Turns the accumulator into the residual of the next step. `sent` is the selection that this rank contributed.
  void (*settle)(Residual& residual, CooView sent, const Outcome& outcome);
  bool needs_shared = false;     // Allreduce::run() computes Outcome::shared
  bool takes_union = false;      // the update is the union of all selections
  bool owner_remembers = false;  // the algorithm keeps a memory of each region at its owner
};
const ResidualRule& residual_rule(ResidualKind kind);

// After a dense exchange of the whole accumulator only rounding errors are left.
void settle_dense(Residual& residual, const Outcome& outcome);

}  // namespace oktopk
