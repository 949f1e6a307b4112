// SPDX-License-Identifier: Apache-2.0
// Residual rules: which mass of this step stays on this rank. Each takes the accumulator as it was
// when the selection was made, and turns it into the residual of the next step. Together with what
// owners remember, a rule that fits its algorithm conserves mass: sum of accumulators + m = update
// + sum of residuals + m'. (gtopk prunes, so sender keeps, its published rule, does not.)
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/device/device.h"

namespace oktopk {

class ResidualRule {
 public:
  virtual ~ResidualRule() = default;
  virtual ResidualKind kind() const = 0;

  // acc becomes the residual. `sent` is the selection that this rank contributed.
  virtual void settle(const Device& device, std::span<float> acc, CooView sent,
                      const Outcome& outcome) const = 0;
};

std::unique_ptr<ResidualRule> make_residual_rule(ResidualKind kind);

}  // namespace oktopk
