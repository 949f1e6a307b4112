// SPDX-License-Identifier: Apache-2.0
// Plans of buckets (FusionPolicy): which tensors are exchanged together. A backward pass finishes the last tensor
// first, so buckets are runs of consecutive tensors counted from the end, and the exchange of one bucket overlaps the
// computation of the next ones. Pure arithmetic: equal arguments give equal plans, so ranks agree without messages.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "oktopk/reduce/bucketed_reducer.h"

namespace oktopk {

// k of a bucket when the model's k is divided by size: at least 1, or 0 if the bucket is empty. The shares of all
// buckets add up to k, except for those that were raised to 1.
std::size_t share_of_k(std::size_t k, Index n, Range bucket);

// The plan of a policy; bucket 0 holds the last tensors. UsageError: values = 0. REQUIRES: there are tensors, with
// fewer than 2^32 values in all.
std::vector<Bucket> plan_buckets(std::span<const Index> tensors, const FusionOptions& options);

}  // namespace oktopk
