// SPDX-License-Identifier: Apache-2.0
// Where dense and sparse change places: the n, the density and the bandwidth nearest to those of a
// problem at which the tuner's choice would be the other one. By search over the same model that
// chooses, override rules left out.
#pragma once

#include <functional>
#include <optional>

#include "oktopk/tune/candidates.h"

namespace oktopk {

// The x nearest to `from`, on the way to `limit` in steps of a factor of two, at which holds(x)
// becomes different from holds(from); then by bisection, to 0.1%. nullopt: nowhere on the way.
// REQUIRES: from and limit positive.
std::optional<double> crossover(const std::function<bool(double)>& holds, double from, double limit);

struct Crossovers {
  bool dense_wins = false;                             // now; what follows is where it would be the other way round
  std::optional<double> n_below, n_above;              // at this density
  std::optional<double> density_below, density_above;  // at this n
  std::optional<double> beta_below, beta_above;        // seconds per byte between hosts
};
Crossovers find_crossovers(const Problem& problem, const Profile& profile, ChoiceOptions options);

}  // namespace oktopk
