// SPDX-License-Identifier: Apache-2.0
// What node-sum-first (reduce/node_reducer.h) costs inside a node, on the leader's path: the dense
// sum of n values to the leader, and the result back to everyone.
#pragma once

#include "oktopk/tune/cost.h"

namespace oktopk {

// Short vectors are summed along a tree; the leader of two receives all values once, either way.
// Others: a reduce-scatter, and its regions gathered by the leader.
bool node_sums_by_tree(double n, int ranks);

Cost node_sum_cost(double n, int ranks);
// The result along a binomial tree: so many entries in two frames, or n values.
Cost node_share_entries_cost(double entries, int ranks);
Cost node_share_values_cost(double n, int ranks);

}  // namespace oktopk
