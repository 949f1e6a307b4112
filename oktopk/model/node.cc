// SPDX-License-Identifier: Apache-2.0
#include "oktopk/model/node.h"

namespace oktopk {

// A reduce-scatter of n values and their gathering by the leader; a broadcast along a tree.
Cost node_cost(double n, double result, int group) {
  const double g = group;
  const double L = ceil_log2(group);
  const double part = n * (g - 1) / g;
  const Cost sum =
      sequential(L, 4 * part, 0, part) + concurrent(g - 1, 4 * part) + Cost{.values = part};
  const double back = result > 0 ? 8 * result : 4 * n;
  return sum + sequential(L, L * back, result, result > 0 ? 0 : n);
}

}  // namespace oktopk
