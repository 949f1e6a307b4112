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
  Crossovers found{.dense_wins = chooses_dense(problem, profile, options)};
  const auto search = [&](const std::string& name, double from, double least, double most, const auto& dense_at) {
    const bool is_positive = from > 0 && least > 0;
    found.at[name + "_below"] = is_positive ? crossover(dense_at, from, least) : std::nullopt;
    found.at[name + "_above"] = is_positive ? crossover(dense_at, from, most) : std::nullopt;
  };
  const auto dense_of = [&](double n, double density) {
    Problem other = problem;
    other.n = n;
    other.k = std::min(n, std::max(1.0, density * n));
    return chooses_dense(other, profile, options);
  };
  const double density = problem.n > 0 ? problem.k / problem.n : 0;
  search("n", density > 0 ? problem.n : 0, 1, kLargestN, [&](double n) { return dense_of(n, density); });
  search("density", density, 1 / problem.n, 1, [&](double d) { return dense_of(problem.n, d); });
  const double beta = profile.machine.beta;
  search("beta", density > 0 ? beta : 0, beta / kExtreme, beta * kExtreme, [&](double b) {
    Profile other = profile;
    other.machine.beta = b;
    if (other.leaders) other.leaders->beta *= b / beta;
    return chooses_dense(problem, other, options);
  });
  return found;
}

}  // namespace oktopk
