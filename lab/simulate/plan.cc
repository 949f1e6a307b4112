// SPDX-License-Identifier: Apache-2.0
#include "lab/simulate/plan.h"

#include <fmt/format.h>

#include "oktopk/allreduce/presets.h"
#include "oktopk/base/error.h"

namespace oktopk {
namespace {

constexpr auto kAuto = "auto";
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr std::size_t kLeastEntries = 16;  // that a smaller problem selects per rank

// About how many bytes all ranks together touch. A rank has its selection and entries that it merges (12 k), the dense
// region, each received message as it came, decoded and summed, and for every message a page that is rarely full.
double needed_bytes(const SimulationSpec& spec) {
  const Problem problem{.n = static_cast<double>(spec.scaled_n()),
                        .k = static_cast<double>(spec.scaled_k()),
                        .P = spec.allreduce_ranks(),
                        .refresh = spec.gathers_unions()};
  const Cost cost = make_allreduce(find_preset(spec.method.preset), spec.allreduce())->predict(problem).expected;
  const double each = 12 * 8 * problem.k + 5 * problem.n / problem.P + 3 * cost.bytes + 4096 * cost.messages;
  double bytes = each * problem.P;
  if (spec.method.preset == "circulant") bytes += 20 * problem.n;  // one memory for all owners
  if (spec.method.group > 1) bytes += 8 * problem.n * spec.P;      // the nodes' sums
  return bytes;
}

}  // namespace

Method choose_method(const std::string& preset, const MethodWishes& wishes, const Problem& problem,
                     const Profile& profile) {
  ChoiceOptions options;
  options.groups = true;
  options.allreduce.thresholds = find_threshold_rule(wishes.thresholds);
  if (preset == kAuto) return rank_candidates(problem, profile, options).front().method;
  const bool is_dense = find_preset(preset).residuals.front() == ResidualKind::none;
  PartialMethod wanted{.preset = preset, .group = is_dense ? 1 : wishes.group};
  if (is_dense) {
    wanted.codec = Codec{};  // the baseline
  } else if (wishes.codec != kAuto) {
    wanted.codec = parse_codec(wishes.codec);
  }
  if (wishes.skips != kAuto) wanted.skips = wishes.skips;
  return best_of(wanted, problem, profile, options).method;
}

Profile profile_of(const Platform& platform, const Machine& kernels) {
  Profile profile;
  profile.name = platform.name;
  profile.machine = platform.machine();
  profile.machine.gamma = kernels.gamma;
  profile.machine.delta = kernels.delta;
  profile.machine.sigma = kernels.sigma;
  if (platform.sharers == 1) return profile;
  profile.ranks_per_host = static_cast<int>(platform.sharers);
  profile.leaders = profile.machine;
  profile.leaders->beta = 1 / platform.bandwidth;
  profile.inside = profile.machine;
  profile.inside->alpha = platform.inside_latency;
  profile.inside->beta = 1 / platform.inside_bandwidth;
  return profile;
}

Problem model_of(const SupportSpec& support) {
  Problem problem{.n = static_cast<double>(support.n), .k = static_cast<double>(support.k), .P = support.P};
  problem.union_exponent = problem.exponent_of(static_cast<double>(union_size(support)));
  return problem;
}

int choose_scale(const SimulationSpec& spec, double memory) {
  SimulationSpec smaller = spec;
  for (smaller.scale = 1; needed_bytes(smaller) > memory; smaller.scale *= 2)
    require(smaller.scaled_k() >= 2 * kLeastEntries, "preset ", spec.method.preset, " on ", spec.P,
            " ranks with n = ", spec.n, " needs about ", fmt::format("{:.2f}", needed_bytes(spec) / kGiB),
            " GiB, but --memory is ", memory / kGiB, ", and a smaller problem would select too few entries");
  return smaller.scale;
}

}  // namespace oktopk
