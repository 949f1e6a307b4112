// SPDX-License-Identifier: Apache-2.0
// What is unsent on this rank, and the rules by which a step changes it.
//
// Residual: n floats that every step visits once, in the pass that adds the gradient. What was sent
// is therefore not cleared when it is settled (k writes all over memory) but noted, and cleared by
// that pass of the next step. Whoever looks at the values earlier gets them settled.
//
// Residual rules: which mass of this step stays on this rank. Each takes the accumulator as it was
// when the selection was made, and turns it into the residual of the next step. Together with what
// owners remember, a rule that fits its algorithm conserves mass: sum of accumulators + m = update
// + sum of residuals + m'. (gtopk prunes, so sender keeps, its published rule, does not.)
#pragma once

#include <memory>
#include <span>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/device/device.h"

namespace oktopk {

class Residual {
 public:
  // REQUIRES: device outlives the residual.
  Residual(const Device& device, Index n) : device_(device), memory_(device.allocate(n)), values_(memory_.get(), n) {}

  std::size_t size() const { return values_.size(); }
  std::span<const float> values() const;

  // The pass that adds a gradient: what it must clear is part of it. accumulated() ends it.
  Accumulation begin(Gradient gradient, float scale) { return {values_, gradient, scale, to_clear_}; }
  void accumulated() { to_clear_.clear(); }

  // idx is increasing; a later call replaces nothing that is still due.
  void clear_later(std::span<const Index> idx);
  void add(CooView v);
  void accumulate(Index begin, std::span<const float> values);
  void multiply(float factor);
  void assign(std::span<const float> values);
  void clear();

 private:
  void settle() const;

  const Device& device_;
  DeviceFloats memory_;
  // The logical value is values_ with the entries in to_clear_ zeroed.
  std::span<float> values_;
  mutable Uninitialised<Index> to_clear_;
};

class ResidualRule {
 public:
  virtual ~ResidualRule() = default;
  virtual ResidualKind kind() const = 0;

  // The accumulator becomes the residual. `sent` is the selection that this rank contributed.
  virtual void settle(Residual& residual, CooView sent, const Outcome& outcome) = 0;
};

std::unique_ptr<ResidualRule> make_residual_rule(ResidualKind kind);

// After a dense exchange of the whole accumulator: only what it returned is left.
void settle_dense(Residual& residual, const Outcome& outcome);

}  // namespace oktopk
