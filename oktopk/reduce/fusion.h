// SPDX-License-Identifier: Apache-2.0
// Plans of buckets (FusionPolicy): which tensors are exchanged together. A backward pass finishes the last tensor
// first, so buckets are runs of consecutive tensors counted from the end, and the exchange of one bucket overlaps the
// computation of the next ones. Pure arithmetic: equal arguments give equal plans, so ranks agree without messages.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "oktopk/reduce/bucketed_reducer.h"

namespace oktopk {

// How many tensors each bucket holds, from the last tensor backwards.
struct FusionPlan {
  std::vector<std::size_t> counts;
};

// The times by which a plan is judged.
struct FusionModel {
  std::vector<double> backward;                        // seconds of each tensor, in flat order
  std::function<double(std::size_t values)> exchange;  // seconds of a bucket
};

// Backward times as the options say; exchanges as the preset predicts them on P ranks. n: of all
// tensors. UsageError when times are negative or not one per tensor.
FusionModel fusion_model(std::span<const Index> tensors, const ReducerOptions& reducer, int P,
                         const FusionOptions& options);

// k when the model's k is divided over buckets by size: this bucket's share, at least 1 unless the
// bucket is empty. The shares of all buckets add up to k, but for those raised to 1.
std::size_t share_of_k(std::size_t k, Index n, Range bucket);

// The plan of a policy; bucket 0 holds the last tensors. The model counts for search and optimal
// only. UsageError: no tensors, 2^32 values or more, values = 0.
std::vector<Bucket> plan_buckets(std::span<const Index> tensors, const FusionOptions& options,
                                 const FusionModel& model);
std::vector<Bucket> lay_out(std::span<const Index> tensors, const FusionPlan& plan);

// Seconds from the start of the backward pass to the end of the last exchange: a bucket starts when
// its tensors are ready and the bucket before it is done.
double predicted_iteration(std::span<const Bucket> buckets, const FusionModel& model);

}  // namespace oktopk
