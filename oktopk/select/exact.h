// SPDX-License-Identifier: Apache-2.0
// The k largest magnitudes, exactly: ties go to the smaller index. The histogram of magnitudes
// gives a lower bound whose bin holds the k-th largest; one scan collects the few candidates above
// it, and only those are compared with each other.
#pragma once

#include "oktopk/select/selector.h"

namespace oktopk {

class ExactSelector final : public Selector {
 public:
  std::string_view name() const override { return "exact"; }

 protected:
  void do_select(const Device& device, const Accumulation& in, std::size_t k,
                 SparseVector& out) override {
    select_exact(device, in, k, out);
  }
};

}  // namespace oktopk
