// SPDX-License-Identifier: Apache-2.0
// The oracle: the right update of a step, computed from the selections of all ranks in one place, with std::map and
// none of the library's code. Every preset is compared with it.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "oktopk/sparse/coo.h"

namespace oktopk {

using Entries = std::map<Index, double>;  // non-zero values by index

// Rounds to float after each addition, as the ranks do.
void oracle_add(Entries& a, const Entries& b);
Entries oracle_sum(std::span<const Entries> ranks);

// The k largest magnitudes (ties: smaller index).
Entries oracle_top(const Entries& x, std::size_t k);
// The entries with magnitude >= threshold.
Entries oracle_at_least(const Entries& x, double threshold);
// The k-th largest magnitude, or the smallest when there are fewer than k; 0 if none.
double oracle_kth(const Entries& x, std::size_t k);

// gTopk: merge along a binomial tree, keeping k at each node.
Entries oracle_gtopk(std::span<const Entries> selections, std::size_t k);
// SparDL: bags of 2^m blocks, pruned to ceil(k/P) before each send and at the end.
Entries oracle_spardl(std::span<const Entries> selections, Index n, std::size_t k);

}  // namespace oktopk
