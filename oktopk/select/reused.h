// SPDX-License-Identifier: Apache-2.0
// Ok-Topk's threshold reuse (paper section 3.2): the exact k-th magnitude every tau' steps, reused
// as a threshold in between. Cheap, because the threshold is known before the pass; the count
// drifts away from k while gradients change (on rough streams by a lot: docs/algorithms/oktopk.md).
// follows_counts adds what the authors' released code does for VGG-16: 1.2% up or down after a
// count above 5k/4 or below 2k/3, and up to five times 3% up in a step that selects more than 4k/3.
// Fewer than k non-zero values give no threshold: the next step evaluates again.
#pragma once

#include "oktopk/select/selector.h"

namespace oktopk {

class ReusedSelector final : public Selector {
 public:
  explicit ReusedSelector(int tau_prime, bool follows_counts = false);
  std::string_view name() const override { return "reused"; }
  void save(StateWriter& state) const override;
  void load(StateReader& state) override;

 protected:
  void do_select(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out) override;

 private:
  void follow(SparseVector& out, std::size_t k);

  int tau_prime_;
  bool follows_counts_;
  int step_ = 0;
  std::size_t k_ = 0;    // of the last step: another k needs another threshold
  float threshold_ = 0;  // 0: not known
};

}  // namespace oktopk
