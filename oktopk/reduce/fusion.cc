// SPDX-License-Identifier: Apache-2.0
// The iteration time over the buffer size is only roughly unimodal: it jumps where a tensor moves to another bucket and
// is flat where no tensor does. So `search` also tries all powers of two, per-tensor and whole, and takes the best plan
// that it saw, the one with fewer buckets among equals. `optimal` is exact: the best plan up to a border extends the
// best plan up to the border before it, because passing a border earlier never delays the later ones. O(tensors^2).
#include "oktopk/reduce/fusion.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/base/error.h"
#include "oktopk/base/find_row.h"
#include "oktopk/reduce/density.h"
#include "oktopk/reduce/notes.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/tune/tuner.h"

namespace oktopk {
namespace {

constexpr EnumNames<FusionPolicy, 5> kPolicies("fusion policy", "whole", "tensor", "size", "search", "optimal");

Index count_values(std::span<const Index> tensors) {
  require(!tensors.empty(), "fusion: no tensors were given");
  const auto n = std::accumulate(tensors.begin(), tensors.end(), std::uint64_t{0});
  require(n <= std::numeric_limits<Index>::max(), "fusion: the tensors hold ", n,
          " values, but at most 2^32 - 1 can be reduced together");
  return static_cast<Index>(n);
}

FusionPlan fuse_by_size(std::span<const Index> tensors, std::size_t values) {
  FusionPlan plan;
  std::size_t held = values;  // the first tensor opens a bucket
  for (std::size_t t = tensors.size(); t-- > 0;) {
    if (held >= values) {
      plan.counts.push_back(0);
      held = 0;
    }
    ++plan.counts.back();
    held += tensors[t];
  }
  return plan;
}

std::vector<Bucket> search(std::span<const Index> tensors, const FusionModel& model) {
  std::vector<Bucket> best;
  double least = std::numeric_limits<double>::infinity();
  const auto try_plan = [&](const FusionPlan& plan) {
    std::vector<Bucket> buckets = lay_out(tensors, plan);
    const double seconds = predicted_iteration(buckets, model);
    if (seconds < least || (seconds == least && buckets.size() < best.size())) {
      least = seconds;
      best = std::move(buckets);
    }
    return seconds;
  };
  const auto try_size = [&](double values) {
    return try_plan(fuse_by_size(tensors, static_cast<std::size_t>(std::lround(values))));
  };
  const double n = std::max<double>(1, count_values(tensors));
  try_plan({.counts = {tensors.size()}});
  try_plan({.counts = std::vector<std::size_t>(tensors.size(), 1)});
  for (double values = 1; values < n; values *= 2) try_size(values);
  // By ratio, not by difference: a size matters by the number of buckets that it makes.
  for (double low = 1, high = n; high - low > 1;) {
    const double middle = std::sqrt(low * high);
    const double left = try_size(std::sqrt(low * middle));
    const double right = try_size(std::sqrt(middle * high));
    (left < right ? high : low) = middle;
  }
  return best;
}

// The best plan of the tensors from some tensor on: when their exchange is over, and where the last bucket ends.
struct Border {
  double done = 0;
  std::size_t end = 0;
  std::size_t buckets = 0;
};

FusionPlan optimal(std::span<const Index> tensors, const FusionModel& model) {
  std::vector<Border> borders(tensors.size() + 1);
  double ready = 0;
  for (std::size_t first = tensors.size(); first-- > 0;) {
    ready += model.backward[first];
    Border best{.done = std::numeric_limits<double>::infinity()};
    std::size_t values = 0;
    for (std::size_t end = first + 1; end <= tensors.size(); ++end) {
      values += tensors[end - 1];
      const double done = std::max(ready, borders[end].done) + model.exchange(values);
      const std::size_t buckets = borders[end].buckets + 1;
      if (done < best.done || (done == best.done && buckets < best.buckets)) best = {done, end, buckets};
    }
    borders[first] = best;
  }
  FusionPlan plan;
  for (std::size_t first = 0; first < tensors.size(); first = borders[first].end)
    plan.counts.push_back(borders[first].end - first);
  std::reverse(plan.counts.begin(), plan.counts.end());
  return plan;
}

std::vector<double> backward_times(std::span<const Index> tensors, const FusionOptions& options) {
  std::vector<double> times = options.tensor_seconds;
  if (times.empty()) {
    const double n = std::max<double>(1, count_values(tensors));
    for (const Index size : tensors) times.push_back(options.backward_seconds * size / n);
  }
  require(times.size() == tensors.size(), "fusion: ", times.size(), " backward times for ", tensors.size(), " tensors");
  for (const double time : times) require(time >= 0 && std::isfinite(time), "fusion: a backward time of ", time, " s");
  return times;
}

}  // namespace

std::string_view to_string(FusionPolicy policy) { return kPolicies[policy]; }

FusionPolicy find_fusion_policy(std::string_view name) { return kPolicies.find(name); }

std::size_t share_of_k(std::size_t k, Index n, Range bucket) {
  if (bucket.width() == 0) return 0;
  const auto before = [&](Index i) { return std::uint64_t{k} * i / n; };
  return std::max<std::size_t>(1, before(bucket.end) - before(bucket.begin));
}

namespace {

// The allreduce of all buckets. Auto may choose another one bucket by bucket; for a plan its choice for the whole model
// is near enough.
std::unique_ptr<Allreduce> allreduce_for(Index n, const ReducerOptions& reducer, int P, const Machine& machine) {
  if (reducer.preset != "auto") return make_allreduce(find_preset(reducer.preset), reducer.allreduce);
  Profile profile = reducer.profile.value_or(Profile{});
  profile.machine = machine;
  const Method method = make_tuner(reducer, n, P, profile).choice().method;
  return make_allreduce(find_preset(method.preset), options_of(method, reducer));
}

}  // namespace

FusionModel fusion_model(std::span<const Index> tensors, const ReducerOptions& reducer, int P,
                         const FusionOptions& options) {
  const Index n = count_values(tensors);
  const double density = reducer.k == 0 ? reducer.density.value_or(kDefaultDensity)
                                        : static_cast<double>(reducer.k) / std::max<Index>(1, n);
  const std::shared_ptr<const Allreduce> allreduce = allreduce_for(n, reducer, P, options.machine);
  const Cost notes = notes_cost(P, reducer).expected;
  const Machine machine = options.machine;
  return {backward_times(tensors, options), [=](std::size_t values) {
            const auto k = static_cast<double>(entries_at(density, static_cast<Index>(values)));
            const Problem problem{.n = static_cast<double>(values), .k = k, .P = P};
            if (values == 0) return 0.0;
            return seconds(allreduce->predict(problem).expected + notes, machine);
          }};
}

std::vector<Bucket> lay_out(std::span<const Index> tensors, const FusionPlan& plan) {
  std::vector<Bucket> buckets;
  std::size_t end = tensors.size();
  Index values = count_values(tensors);
  for (const std::size_t count : plan.counts) {
    Bucket bucket{.first = end - count, .end = end, .range = {values, values}};
    for (std::size_t t = bucket.first; t < end; ++t) bucket.range.begin -= tensors[t];
    end = bucket.first;
    values = bucket.range.begin;
    buckets.push_back(bucket);
  }
  return buckets;
}

std::vector<Bucket> plan_buckets(std::span<const Index> tensors, const FusionOptions& options,
                                 const FusionModel& model) {
  require(options.values > 0, "fusion: values = 0, but a bucket holds at least one");
  count_values(tensors);
  switch (options.policy) {
    case FusionPolicy::whole:
      return lay_out(tensors, {.counts = {tensors.size()}});
    case FusionPolicy::tensor:
      return lay_out(tensors, {.counts = std::vector<std::size_t>(tensors.size(), 1)});
    case FusionPolicy::size:
      return lay_out(tensors, fuse_by_size(tensors, options.values));
    case FusionPolicy::search:
      return search(tensors, model);
    case FusionPolicy::optimal:
      return lay_out(tensors, optimal(tensors, model));
  }
  fail<UsageError>("fusion: policy ", static_cast<int>(options.policy), " does not exist");
}

double predicted_iteration(std::span<const Bucket> buckets, const FusionModel& model) {
  double ready = 0;
  double done = 0;
  for (const Bucket& bucket : buckets) {
    for (std::size_t t = bucket.end; t-- > bucket.first;) ready += model.backward[t];
    done = std::max(done, ready) + model.exchange(bucket.range.width());
  }
  return done;
}

}  // namespace oktopk
