// SPDX-License-Identifier: Apache-2.0
// Controlled threshold (ours, the default): one fused pass with a threshold that is steered by the
// counts it yields. Aim at 1.1k, trim to exactly k.
//   * Newton step in log-log: theta *= exp(0.4 * H * ln(count/aim)), H the mean of ln(|v|/theta)
//     over some selected entries (Hill's estimator of the tail's slope), which costs next to
//     nothing.
//   * Before the pass a sample checks the threshold; when it is far off (a spike, a
//     learning rate drop), the threshold is replaced by the sample's quantile.
//   * A pass that still yields fewer than 2k/3 is repeated once with a lower threshold, then made
//     exactly.
// The state is three numbers; it starts, and falls back, with an exact selection.
#pragma once

#include "oktopk/select/magnitude_sample.h"
#include "oktopk/select/selector.h"

namespace oktopk {

class ControlledSelector final : public Selector {
 public:
  std::string_view name() const override { return "controlled"; }
  void save(StateWriter& state) const override;
  void load(StateReader& state) override;

 protected:
  void do_select(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out) override;

 private:
  void restart(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out);
  void check_by_sample(const Device& device, const Accumulation& in, double aim);
  void steer(const SparseVector& selected, double aim);

  float threshold_ = 0;  // 0: not known yet
  double slope_ = 0;     // H, smoothed
  std::size_t offset_ = 0;
  MagnitudeSample sample_;
};

}  // namespace oktopk
