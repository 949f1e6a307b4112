// SPDX-License-Identifier: Apache-2.0
// What the update of a step must be, computed from all ranks' selections in one place, in double, without
// any of the library's machinery. The truth that every preset is compared with.
#pragma once

#include <span>
#include <vector>

#include "oktopk/sparse/coo.h"

namespace oktopk {

using Dense = std::vector<double>;  // by index

// Sum over ranks.
Dense oracle_sum(std::span<const Dense> ranks);

// The k largest magnitudes (ties: smaller index), zero elsewhere; zeros are never chosen.
Dense oracle_top(const Dense& x, std::size_t k);
// Those with magnitude >= threshold.
Dense oracle_at_least(const Dense& x, double threshold);
// The k-th largest magnitude, or the smallest non-zero one when there are fewer than k; 0 if none.
double oracle_kth(const Dense& x, std::size_t k);

// gTopk: merge along a binomial tree, keeping k at each node.
Dense oracle_gtopk(std::span<const Dense> selections, std::size_t k);
// SparDL: bags of 2^m blocks, pruned to ceil(k/P) before each send and at the end.
Dense oracle_spardl(std::span<const Dense> selections, std::size_t k);

}  // namespace oktopk
