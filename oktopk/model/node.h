// SPDX-License-Identifier: Apache-2.0
// What node-sum-first costs inside a node: the dense sum of n values to the leader, and the result
// back to everyone.
#pragma once

#include "oktopk/model/cost.h"

namespace oktopk {

// On the leader's path. `result`: sparse entries that come back; 0: n dense values.
Cost node_cost(double n, double result, int group);

}  // namespace oktopk
