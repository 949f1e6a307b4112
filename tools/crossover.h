// SPDX-License-Identifier: Apache-2.0
// Where dense and sparse change places: the n, the density and the bandwidth nearest to those of a problem at which the
// tuner's choice would be the other one. A search over the same model that chooses, without override rules.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "oktopk/tune/candidates.h"

namespace oktopk {

// The x nearest to `from`, on the way to `limit` in steps of a factor of two, at which holds(x)
// becomes different from holds(from); then by bisection, to 0.1%. nullopt: nowhere on the way.
// REQUIRES: from and limit positive.
std::optional<double> crossover(const std::function<bool(double)>& holds, double from, double limit);

struct Crossovers {
  bool dense_wins = false;  // in the problem itself
  // The nearest places where it would be the other way round; nullopt: nowhere. "n_below" and "n_above" at this
  // density, "density_below" and "density_above" at this n, "beta_below" and "beta_above" in seconds per byte between
  // hosts.
  std::map<std::string, std::optional<double>> at;
};
Crossovers find_crossovers(const Problem& problem, const Profile& profile, ChoiceOptions options);

}  // namespace oktopk
