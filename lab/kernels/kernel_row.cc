// SPDX-License-Identifier: Apache-2.0
#include "lab/kernels/kernel_row.h"

#include <algorithm>
#include <cmath>

namespace oktopk {
namespace {

bool applies(const Goal& goal, const std::string& kernel, double n, double k) {
  const std::string_view verb = std::string_view(kernel).substr(std::min(goal.kernel.size(), kernel.size()));
  const bool is_named = kernel.starts_with(goal.kernel) &&
                        (verb.empty() || verb == " encode" || verb == " decode" || verb.starts_with(" P="));
  const double found = k / n;
  const bool is_as_dense = goal.density == 0 || std::fabs(found - goal.density) < 0.01 * goal.density ||
                           (goal.density == 0.001 && found < goal.density);
  return is_named && is_as_dense && n >= 1U << 24U;
}

}  // namespace

nlohmann::json row_json(const KernelRow& row, const TimedPair& times, const KernelProblem& problem,
                        std::span<const Goal> goals) {
  const double seconds = times.kernel.median;
  const double ns = row.entries > 0 ? 1e9 * seconds / row.entries : 0;
  nlohmann::json reach = nlohmann::json::array();
  for (const Goal& goal : goals) {
    if (!applies(goal, row.kernel, problem.n, problem.k)) continue;
    const double value = goal.unit == "x" ? times.ratio() : goal.unit == "ns" ? ns : row.bits;
    reach.push_back({{"unit", goal.unit}, {"most", goal.most}, {"value", value}, {"met", value <= goal.most}});
  }
  return {{"kernel", row.kernel},
          {"simd", problem.where},
          {"data", problem.data},
          {"n", problem.n},
          {"k", problem.k},
          {"time", seconds},
          {"time_min", times.kernel.least},
          {"time_mad", times.kernel.deviation},
          {"bandwidth", seconds > 0 ? row.bytes / seconds : 0},
          {"ns_per_entry", ns},
          {"bits_per_entry", row.bits},
          {"limit", row.limit},
          {"limit_time", times.limit.median},
          {"limit_time_min", times.limit.least},
          {"limit_time_mad", times.limit.deviation},
          {"ratio", times.ratio()},
          {"ratio_min", times.least_ratio()},
          {"reach", reach}};
}

}  // namespace oktopk
