// SPDX-License-Identifier: Apache-2.0
// The k largest magnitudes, exactly: ties go to the smaller index. A sample gives a lower bound
// that a little more than k elements reach; one pass collects these candidates, and only they are
// compared with each other. When the sample was wrong, and fewer than k came, the histogram of all
// magnitudes gives the bound.
#pragma once

#include "oktopk/select/selector.h"

namespace oktopk {

class ExactSelector final : public Selector {
 public:
  std::string_view name() const override { return "exact"; }

 protected:
  void do_select(const Device& device, const Accumulation& in, std::size_t k, SparseVector& out) override {
    select_exact(device, in, k, out);
  }
};

}  // namespace oktopk
