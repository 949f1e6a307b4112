// SPDX-License-Identifier: Apache-2.0
// What one step applies to the weights: the mean over the ranks, bitwise equal on all of them. A
// sparse step gives entries, a dense one all n values. Views of memory that belongs to whoever made
// the step, good until its next step.
#pragma once

#include <span>

#include "oktopk/sparse/coo.h"

namespace oktopk {

struct Update {
  CooView sparse;                     // entries; empty after a dense step
  std::span<const float> dense = {};  // all n values after a dense step, else empty
  bool skipped = false;               // some rank's gradient was not finite, and NanPolicy::skip was chosen

  bool is_dense() const { return !dense.empty(); }
  std::size_t size() const { return is_dense() ? dense.size() : sparse.size(); }

  // visit(index, mean) for every entry, by increasing index.
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::size_t j = 0; j < sparse.size(); ++j) visit(sparse.idx[j], sparse.val[j]);
    for (std::size_t i = 0; i < dense.size(); ++i) visit(static_cast<Index>(i), dense[i]);
  }

  void subtract_from(std::span<float> weights) const {
    for_each([&](Index i, float mean) { weights[i] -= mean; });
  }
};

}  // namespace oktopk
