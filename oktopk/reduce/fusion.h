// SPDX-License-Identifier: Apache-2.0
// Which tensors are exchanged together. A backward pass finishes the last tensor first, so buckets
// are runs of consecutive tensors counted from the end, and the exchange of one bucket overlaps the
// computation of the next ones. More buckets overlap more and pay more messages. Pure arithmetic:
// equal arguments give equal plans, so ranks agree without talking.
//
//   whole    one bucket: k is the model's, nothing overlaps; the choice of Ok-Topk (PPoPP'22)
//   tensor   one bucket per tensor
//   size     fuse until a bucket holds at least so many values
//   search   the best size by binary search on the iteration time, after TopKA2A (Peng, Li, Shi,
//            Li, ICPP'24), with the time from the cost model in place of a measured one
//   optimal  ours: the best of all plans under the same model, by dynamic programming
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "oktopk/reduce/reducer.h"
#include "oktopk/tune/cost.h"

namespace oktopk {

enum class FusionPolicy { whole, tensor, size, search, optimal };
std::string_view to_string(FusionPolicy policy);
FusionPolicy find_fusion_policy(std::string_view name);  // UsageError lists the names

struct FusionOptions {
  FusionPolicy policy = FusionPolicy::whole;
  std::size_t values = std::size_t{1} << 20;  // size: of a full bucket
  // search and optimal: what a message, a byte and a merged entry cost, and how long the backward
  // pass takes: either per tensor, in flat order, or altogether, divided by size.
  Machine machine = {};
  double backward_seconds = 0;
  std::vector<double> tensor_seconds = {};
};

// How many tensors each bucket holds, from the last tensor backwards.
struct FusionPlan {
  std::vector<std::size_t> counts;
};

// Tensors first <= t < end; their values in the flat gradient.
struct Bucket {
  std::size_t first = 0;
  std::size_t end = 0;
  Range range;
  friend bool operator==(const Bucket&, const Bucket&) = default;
};

// What a plan is judged by.
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
