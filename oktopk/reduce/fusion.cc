// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/fusion.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "oktopk/base/error.h"
#include "oktopk/base/find_row.h"

namespace oktopk {
namespace {

constexpr EnumNames<FusionPolicy, 3> kPolicies("fusion policy", "whole", "tensor", "size");

// A bucket is full when it holds so many values; every bucket holds a tensor.
std::size_t full_bucket(const FusionOptions& options) {
  if (options.policy == FusionPolicy::whole) return std::numeric_limits<std::size_t>::max();
  return options.policy == FusionPolicy::tensor ? 0 : options.values;
}

}  // namespace

std::string_view to_string(FusionPolicy policy) { return kPolicies[policy]; }

FusionPolicy find_fusion_policy(std::string_view name) { return kPolicies.find(name); }

std::size_t share_of_k(std::size_t k, Index n, Range bucket) {
  if (bucket.width() == 0) return 0;
  const auto before = [&](Index i) { return std::uint64_t{k} * i / n; };
  return std::max<std::size_t>(1, before(bucket.end) - before(bucket.begin));
}

std::vector<Bucket> plan_buckets(std::span<const Index> tensors, const FusionOptions& options) {
  require(options.values > 0, "fusion: values = 0, but a bucket holds at least one");
  const std::size_t full = full_bucket(options);
  std::vector<Bucket> buckets;
  Index values = std::accumulate(tensors.begin(), tensors.end(), Index{0});
  for (std::size_t t = tensors.size(); t-- > 0;) {
    if (buckets.empty() || buckets.back().range.width() >= full)
      buckets.push_back({.first = t + 1, .end = t + 1, .range = {values, values}});
    buckets.back().first = t;
    buckets.back().range.begin = values -= tensors[t];
  }
  return buckets;
}

}  // namespace oktopk
