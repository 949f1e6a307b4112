// SPDX-License-Identifier: Apache-2.0
#include "oktopk/tune/candidates.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/parts/reduce_scatter.h"
#include "oktopk/allreduce/presets.h"
#include "oktopk/base/error.h"

namespace oktopk {
namespace {

// gaussiank is missing: the number of entries that its fit selects cannot be predicted.
constexpr std::array kCandidates = {"circulant", "topka", "topkdsa", "gtopk", "topka2a", "oktopk", "spardl", "slots"};
constexpr std::array kIndexCodings = {IndexCoding::coo32, IndexCoding::bit_packed, IndexCoding::elias_fano};

// Only circulant codes indices and values, and dense rounds to bf16; the published systems send plain coordinates.
std::vector<Codec> codecs_for(const std::string& preset, ValueCoding coarsest) {
  if (preset != "circulant" && preset != "dense") return {Codec{}};
  const bool is_dense = preset == "dense";
  const auto indices = std::span(kIndexCodings).first(is_dense ? 1 : kIndexCodings.size());
  const ValueCoding most = is_dense ? std::min(coarsest, ValueCoding::bf16) : coarsest;
  std::vector<Codec> codecs;
  for (const IndexCoding index : indices)
    for (int v = 0; v <= static_cast<int>(most); ++v) codecs.push_back({index, static_cast<ValueCoding>(v)});
  return codecs;
}

// The problem that the groups' leaders solve.
Problem outside_groups(Problem problem, int group) {
  problem.P = (problem.P + group - 1) / group;
  problem.refresh = false;
  return problem;
}

// Presets that clear everything they sent apply the union of all selections.
double applied_entries(const Problem& problem, const Allreduce& allreduce) {
  return residual_rule(allreduce.options().residual).takes_union ? problem.union_of(problem.P) : problem.result();
}

// Seconds to sum n values inside a group and to share the update and the leader's own selection there.
double seconds_inside(int group, const Problem& problem, const Problem& outside, const Allreduce& allreduce,
                      const Machine& machine) {
  if (group == 1) return 0;
  const Cost share = allreduce.is_dense()
                         ? node_share_values_cost(problem.n, group)
                         : node_share_entries_cost(applied_entries(outside, allreduce) + problem.k, group);
  return seconds(node_sum_cost(problem.n, group) + share, machine);
}

// The part of the steps that refreshes: as observed, else one in tau' (oktopk), one in a hundred (circulant:
// docs/algorithms/circulant.md).
double refresh_share(const Method& method, const AllreduceOptions& base, const ChoiceOptions& options) {
  const auto observed = options.refreshes.find(method.preset);
  if (observed != options.refreshes.end()) return observed->second;
  if (method.preset == "oktopk") return 1.0 / base.tau_prime;
  return method.preset == "circulant" ? 0.01 : 0;
}

bool is_preferred(const Candidate& c) { return c.method.preset == "dense" || c.method.preset == "circulant"; }

}  // namespace

AllreduceOptions Method::options(const AllreduceOptions& base) const {
  AllreduceOptions options = base;
  options.codec = codec;
  options.skips = skips;
  return options;
}

std::string to_string(const Method& method) {
  std::string text = method.preset;
  if (method.preset == "dense")
    text += ' ' + std::string(value_codings()[static_cast<std::size_t>(method.codec.value)].name);
  else if (method.preset != "slots")  // which has a coding of its own
    text += ' ' + to_string(method.codec);
  if (method.preset == "circulant") text += " skips " + method.skips;
  if (method.group > 1) text += " group " + std::to_string(method.group);
  return text;
}

Candidate price(const Method& method, const Problem& problem, const Profile& profile, const ChoiceOptions& options) {
  const Preset& preset = find_preset(method.preset);
  const AllreduceOptions base = fitting(preset, options.allreduce);
  const auto allreduce = make_allreduce(preset, method.options(base));
  Problem outside = outside_groups(problem, method.group);
  Candidate c{.method = method, .cost = allreduce->predict(outside).expected};
  const Machine machine = profile.machine_with(method.codec, method.group > 1);
  double exchange = seconds(c.cost, machine);
  if (const double share = refresh_share(method, base, options); share > 0) {
    outside.refresh = true;
    exchange += share * (seconds(allreduce->predict(outside).expected, machine) - exchange);
  }
  c.compute = problem.n * (allreduce->is_dense() ? machine.delta : machine.sigma);
  c.inside = seconds_inside(method.group, problem, outside, *allreduce, profile.inside.value_or(profile.machine));
  c.seconds = exchange + c.compute + c.inside;
  c.external = options.external_dense && method.preset == "dense" && method.codec.lossless();
  if (c.external && profile.external_dense) {  // the caller measured the whole step
    c.compute = 0;
    c.seconds = profile.external_dense->latency + profile.external_dense->per_byte * problem.n * sizeof(float);
  }
  return c;
}

Skips best_skips(const Problem& problem, Codec codec, const Machine& machine) {
  require(problem.P >= 1, "skips: P = ", problem.P, ", but there is at least one rank");
  const auto P = static_cast<std::size_t>(problem.P);
  std::vector<double> best(P + 1, 0.0);
  std::vector<int> next(P + 1, 1);
  for (std::size_t S = 2; S <= P; ++S) {
    const auto held = static_cast<double>(S);
    const Cost block = SparseReduceScatter::predict_block(held, problem, codec, true);
    best[S] = std::numeric_limits<double>::infinity();
    for (std::size_t T = S - 1; T >= 1; --T) {  // large T first: among equal times, fewer messages win
      const std::size_t hops = (S + T - 1) / T - 1;
      const double blocks = held - static_cast<double>(T);
      const double phase =
          seconds(concurrent(static_cast<double>(hops), blocks * block.bytes, held * block.entries), machine);
      if (phase + best[T] >= best[S]) continue;
      best[S] = phase + best[T];
      next[S] = static_cast<int>(T);
    }
  }
  Skips skips = {problem.P};
  while (skips.back() > 1) skips.push_back(next[static_cast<std::size_t>(skips.back())]);
  return skips;
}

Candidate best_of(const PartialMethod& wanted, const Problem& problem, const Profile& profile,
                  const ChoiceOptions& options) {
  Candidate best;
  best.seconds = std::numeric_limits<double>::infinity();
  const int host = options.groups ? std::min(wanted.group.value_or(profile.ranks_per_host), problem.P) : 1;
  const std::vector<int> groups = wanted.group || host == 1 ? std::vector{host} : std::vector{1, host};
  const auto codecs = wanted.codec ? std::vector<Codec>{*wanted.codec} : codecs_for(wanted.preset, options.coarsest);
  for (const int group : groups)
    for (const Codec codec : codecs) {
      Method method{.preset = wanted.preset, .codec = codec, .group = group};
      const Machine machine = profile.machine_with(codec, group > 1);
      if (wanted.skips) method.skips = *wanted.skips;
      if (!wanted.skips && wanted.preset == "circulant")
        method.skips = to_string(best_skips(outside_groups(problem, group), codec, machine));
      const Candidate c = price(method, problem, profile, options);
      if (c.seconds < best.seconds) best = c;
    }
  return best;
}

std::vector<Candidate> rank_candidates(const Problem& problem, const Profile& profile, const ChoiceOptions& options) {
  require(problem.P >= 1 && problem.n >= 0 && problem.k >= 0 && problem.k <= problem.n, "choose: n = ", problem.n,
          ", k = ", problem.k, ", P = ", problem.P, ", but 0 <= k <= n and P >= 1");
  std::vector<Candidate> all;
  if (options.external_dense) {  // fp32 is the caller's and bf16 is ours: each has its own correction
    for (const Codec codec : codecs_for("dense", options.coarsest))
      all.push_back(best_of({.preset = "dense", .codec = codec}, problem, profile, options));
  } else {
    all.push_back(best_of({.preset = "dense"}, problem, profile, options));
  }
  std::vector<std::string> names = options.presets;
  if (names.empty()) names.assign(kCandidates.begin(), kCandidates.end());
  const bool may_round = options.coarsest != ValueCoding::fp32;  // slots rounds values to 12 bits
  for (const std::string& name : names)
    if (name != "dense" && (name != "slots" || may_round))
      all.push_back(best_of({.preset = name}, problem, profile, options));
  std::ranges::stable_sort(all, {}, &Candidate::seconds);
  const auto preferred = std::ranges::find_if(all, is_preferred);
  if (preferred->seconds <= all.front().seconds * (1 + options.preference))
    std::rotate(all.begin(), preferred, preferred + 1);
  if (const Rule* rule = options.overrides.match(problem)) {
    Candidate wanted = best_of(rule->method, problem, profile, options);
    wanted.overridden = true;
    std::erase_if(all, [&](const Candidate& c) { return c.method == wanted.method; });
    all.insert(all.begin(), wanted);
  }
  return all;
}

}  // namespace oktopk
