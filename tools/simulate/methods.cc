// SPDX-License-Identifier: Apache-2.0
#include "tools/simulate/methods.h"

#include "oktopk/allreduce/presets.h"
#include "oktopk/base/error.h"

namespace oktopk {
namespace {

constexpr auto kAuto = "auto";

Machine with_kernels(Machine network, const Machine& kernels) {
  network.gamma = kernels.gamma;
  network.delta = kernels.delta;
  network.sigma = kernels.sigma;
  return network;
}

Method method_of(const std::string& preset, const MethodWishes& wishes, const Problem& problem,
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

}  // namespace

void check(const MethodWishes& wishes) {
  if (wishes.codec != kAuto) parse_codec(wishes.codec);
  find_threshold_rule(wishes.thresholds);
  require(wishes.group >= 1, "--group ", wishes.group, ": it must be at least 1");
}

std::vector<Method> choose_methods(const std::vector<std::string>& presets, const MethodWishes& wishes,
                                   const Problem& problem, const Profile& network) {
  std::vector<Method> methods;
  for (const std::string& preset : presets) methods.push_back(method_of(preset, wishes, problem, network));
  return methods;
}

Profile profile_of(const Platform& platform, const Machine& kernels) {
  Profile profile;
  profile.name = platform.name;
  profile.machine = with_kernels(platform.machine(), kernels);
  if (platform.sharers == 1) return profile;
  profile.ranks_per_host = static_cast<int>(platform.sharers);
  Machine alone = platform.machine();
  alone.beta = 1 / platform.bandwidth;
  profile.leaders = with_kernels(alone, kernels);
  Machine inside = platform.machine();
  inside.alpha = platform.inside_latency;
  inside.beta = 1 / platform.inside_bandwidth;
  profile.inside = with_kernels(inside, kernels);
  return profile;
}

}  // namespace oktopk
