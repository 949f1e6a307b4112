// SPDX-License-Identifier: Apache-2.0
#include "tools/crossover.h"

#include <algorithm>
#include <cmath>

namespace oktopk {
namespace {

constexpr double kLargestN = 0x1p32;
constexpr double kExtreme = 0x1p10;  // a network so many times faster or slower

bool chooses_dense(const Problem& problem, const Profile& profile, const ChoiceOptions& options) {
  return rank_candidates(problem, profile, options).front().method.preset == "dense";
}

}  // namespace

std::optional<double> crossover(const std::function<bool(double)>& holds, double from, double limit) {
  const bool now = holds(from);
  const bool up = limit > from;
  double same = from;
  while (same != limit) {
    double other = up ? std::min(limit, same * 2) : std::max(limit, same / 2);
    if (holds(other) == now) {
      same = other;
      continue;
    }
    while (std::max(same, other) > 1.001 * std::min(same, other)) {
      const double middle = std::sqrt(same * other);
      (holds(middle) == now ? same : other) = middle;
    }
    return other;
  }
  return std::nullopt;
}

Crossovers find_crossovers(const Problem& problem, const Profile& profile, ChoiceOptions options) {
  options.overrides = {};
  Crossovers found;
  found.dense_wins = chooses_dense(problem, profile, options);
  if (problem.n < 1 || problem.k <= 0) return found;
  const double density = problem.k / problem.n;
  const auto by_n = [&](double n) {
    Problem other = problem;
    other.n = n;
    other.k = std::min(n, std::max(1.0, density * n));
    return chooses_dense(other, profile, options);
  };
  found.n_below = crossover(by_n, problem.n, 1);
  found.n_above = crossover(by_n, problem.n, kLargestN);
  const auto by_density = [&](double d) {
    Problem other = problem;
    other.k = std::min(problem.n, std::max(1.0, d * problem.n));
    return chooses_dense(other, profile, options);
  };
  found.density_below = crossover(by_density, density, 1 / problem.n);
  found.density_above = crossover(by_density, density, 1);
  if (profile.machine.beta <= 0) return found;
  const auto by_beta = [&](double beta) {
    Profile other = profile;
    other.machine.beta = beta;
    if (other.leaders) other.leaders->beta *= beta / profile.machine.beta;
    return chooses_dense(problem, other, options);
  };
  found.beta_below = crossover(by_beta, profile.machine.beta, profile.machine.beta / kExtreme);
  found.beta_above = crossover(by_beta, profile.machine.beta, profile.machine.beta * kExtreme);
  return found;
}

}  // namespace oktopk
