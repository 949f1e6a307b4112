// SPDX-License-Identifier: Apache-2.0
// The largest entries of a sparse vector: larger magnitude first, then smaller index. Results stay in the order of
// indices. Magnitudes are compared as the bits of |x|: infinities and, above them, NaNs count as the largest.
//
// COST: O(size): a histogram of the magnitudes, a look at the few that share the bin of the k-th, and a pass that moves
// entries. Nothing is allocated, but for the growth of `dropped`.
#pragma once

#include <cstddef>
#include <span>

#include "oktopk/sparse/coo.h"

namespace oktopk {

// The first i with values[i] NaN or infinite; values.size() when all are finite.
std::size_t first_nonfinite(std::span<const float> values);

// The smallest magnitude; 0 if there are no values.
float smallest_magnitude(std::span<const float> values);

// The k-th largest magnitude. REQUIRES: 1 <= k <= values.size().
float kth_magnitude(std::span<const float> values, std::size_t k);

// Shrinks v to its k largest entries; appends the others to `dropped`, if given.
void keep_largest(SparseVector& v, std::size_t k, SparseVector* dropped = nullptr);

// Shrinks v to the entries with magnitude >= threshold; the others as above.
void keep_at_least(SparseVector& v, float threshold, SparseVector* dropped = nullptr);

}  // namespace oktopk
