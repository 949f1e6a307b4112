// SPDX-License-Identifier: Apache-2.0
#include "oktopk/tune/choose.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/presets.h"
#include "oktopk/base/error.h"
#include "oktopk/tune/best_skips.h"
#include "oktopk/tune/node.h"

namespace oktopk {
namespace {

// gaussiank sends as many entries as its fit finds, which nobody can predict.
constexpr std::array kCandidates = {"circulant", "topka", "topkdsa", "gtopk", "topka2a", "oktopk", "spardl"};
constexpr std::array kIndexCodings = {IndexCoding::coo32, IndexCoding::bit_packed, IndexCoding::elias_fano};

// The published systems send plain coordinates; codings belong to circulant.
std::vector<Codec> codecs_for(const std::string& preset, ValueCoding coarsest) {
  std::vector<Codec> codecs;
  const auto add_values = [&](IndexCoding index, ValueCoding most) {
    for (int v = 0; v <= static_cast<int>(most); ++v) codecs.push_back({index, static_cast<ValueCoding>(v)});
  };
  if (preset == "circulant") {
    for (const IndexCoding index : kIndexCodings) add_values(index, coarsest);
  } else if (preset == "dense") {
    add_values(IndexCoding::coo32, std::min(coarsest, ValueCoding::bf16));
  } else {
    codecs.push_back({});
  }
  return codecs;
}

// Presets that clear all that was sent apply the union.
double applied_entries(const Problem& problem, const Allreduce& allreduce) {
  return allreduce.options().residual == ResidualKind::all_sent_cleared ? problem.union_of(problem.P)
                                                                        : problem.result();
}

bool is_external(const Method& method, const ChoiceOptions& options) {
  return options.external_dense && method.preset == "dense" && method.codec.lossless();
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
  std::string text = method.preset + ' ';
  text += method.preset == "dense" ? std::string(value_codings()[static_cast<std::size_t>(method.codec.value)].name)
                                   : to_string(method.codec);
  if (method.preset == "circulant") text += " skips " + method.skips;
  if (method.group > 1) text += " group " + std::to_string(method.group);
  return text;
}

Candidate price(const Method& method, const Problem& problem, const Profile& profile, const ChoiceOptions& options) {
  const Preset& preset = find_preset(method.preset);
  const AllreduceOptions base = fitting(preset, options.allreduce);
  const auto allreduce = make_allreduce(preset, method.options(base));
  Problem outside = problem;
  outside.P = (problem.P + method.group - 1) / method.group;
  outside.refresh = false;
  Candidate c{.method = method, .cost = allreduce->predict(outside).expected};
  const Machine machine = profile.machine_with(method.codec, method.group > 1);
  double exchange = seconds(c.cost, machine);
  if (method.preset == "oktopk") {  // a refresh serves tau' steps
    outside.refresh = true;
    const double refresh = seconds(allreduce->predict(outside).expected, machine);
    exchange += (refresh - exchange) / base.tau_prime;
  }
  c.compute = problem.n * (allreduce->is_dense() ? machine.delta : machine.sigma);
  if (method.group > 1) {
    // An update, and what the leader sent.
    const Cost share = allreduce->is_dense()
                           ? node_share_values_cost(problem.n, method.group)
                           : node_share_entries_cost(applied_entries(outside, *allreduce) + problem.k, method.group);
    c.inside = seconds(node_sum_cost(problem.n, method.group) + share, profile.inside.value_or(profile.machine));
  }
  c.seconds = exchange + c.compute + c.inside;
  c.external = is_external(method, options);
  if (c.external && profile.external_dense) {  // measured with all that belongs to it
    c.compute = 0;
    c.seconds = profile.external_dense->latency + profile.external_dense->per_byte * problem.n * sizeof(float);
  }
  return c;
}

Candidate best_of(const std::string& preset, const Problem& problem, const Profile& profile,
                  const ChoiceOptions& options) {
  return best_of(PartialMethod{.preset = preset}, problem, profile, options);
}

Candidate best_of(const PartialMethod& wanted, const Problem& problem, const Profile& profile,
                  const ChoiceOptions& options) {
  find_preset(wanted.preset);
  Candidate best;
  best.seconds = std::numeric_limits<double>::infinity();
  std::vector<int> groups = {1};
  const int g = std::min(profile.ranks_per_host, problem.P);
  if (options.groups && g > 1) groups.push_back(g);
  if (wanted.group && options.groups) groups = {std::min(*wanted.group, problem.P)};
  std::vector<Codec> codecs = codecs_for(wanted.preset, options.coarsest);
  if (wanted.codec) codecs = {*wanted.codec};
  for (const int group : groups)
    for (const Codec codec : codecs) {
      Method method{.preset = wanted.preset, .codec = codec, .group = group};
      if (wanted.skips) {
        method.skips = *wanted.skips;
      } else if (wanted.preset == "circulant") {
        Problem outside = problem;
        outside.P = (problem.P + group - 1) / group;
        method.skips = to_string(best_skips(outside, codec, profile.machine_with(codec, group > 1)));
      }
      const Candidate c = price(method, problem, profile, options);
      if (c.seconds < best.seconds) best = c;
    }
  return best;
}

std::vector<Candidate> rank_candidates(const Problem& problem, const Profile& profile, const ChoiceOptions& options) {
  require(problem.P >= 1 && problem.n >= 0 && problem.k >= 0 && problem.k <= problem.n, "choose: n = ", problem.n,
          ", k = ", problem.k, ", P = ", problem.P, ", but 0 <= k <= n and P >= 1");
  std::vector<Candidate> all;
  if (options.external_dense) {  // two ways to do it, with corrections of their own
    for (const Codec codec : codecs_for("dense", options.coarsest))
      all.push_back(best_of({.preset = "dense", .codec = codec}, problem, profile, options));
  } else {
    all.push_back(best_of("dense", problem, profile, options));
  }
  std::vector<std::string> names = options.presets;
  if (names.empty()) names.assign(kCandidates.begin(), kCandidates.end());
  for (const std::string& name : names)
    if (name != "dense") all.push_back(best_of(name, problem, profile, options));
  std::stable_sort(all.begin(), all.end(),
                   [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; });
  const auto preferred = std::find_if(all.begin(), all.end(), is_preferred);
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
