// SPDX-License-Identifier: Apache-2.0
// Problems, profiles and candidates as tune and explain show them, and where dense and sparse change places: the n, the
// density and the bandwidth nearest to those of a problem at which the tuner's choice would be the other one.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "oktopk/tune/candidates.h"

namespace oktopk {

// n, k = density * n (at least 1) and P, checked.
Problem make_problem(double n, double density, int P, double overlap);

// For columns of tables: the row with the time of dense, and how many times faster than dense its time is.
nlohmann::json with_dense(nlohmann::json row, double dense_seconds);
std::string times_dense(const nlohmann::json& row);

std::string format_bandwidth(double beta);
void print_profile(const Profile& profile);

// Its time in seconds has three parts: network; compute (entries and values that arrive, and the pass over n); other
// (inside groups, and refresh steps, shared among the steps that they serve).
nlohmann::json to_json(const Candidate& candidate, const Problem& problem, const Profile& profile);

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
