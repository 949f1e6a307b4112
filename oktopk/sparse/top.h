// SPDX-License-Identifier: Apache-2.0
// The largest entries of a sparse vector. Which: larger magnitude first, then smaller index. Order
// of the result: by index.
//
// COST: O(size).
#pragma once

#include <cstddef>
#include <span>

#include "oktopk/sparse/coo.h"

namespace oktopk {

// The k-th largest magnitude. REQUIRES: 1 <= k <= values.size(), values finite.
float kth_magnitude(std::span<const float> values, std::size_t k);

// Shrinks v to its k largest entries; what goes is appended to `dropped`, if given.
void keep_largest(SparseVector& v, std::size_t k, SparseVector* dropped = nullptr);

// Shrinks v to the entries with magnitude >= threshold.
void keep_at_least(SparseVector& v, float threshold);

}  // namespace oktopk
