// SPDX-License-Identifier: Apache-2.0
#include "tools/choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "oktopk/base/error.h"
#include "tools/text.h"

namespace oktopk {
namespace {

void print_machine(const char* title, const Machine& m) {
  fmt::print("{:<9} latency {:.3g} us per round, {:.3g} us per message, {}, {:.3g}x slower with everyone at once\n",
             title, m.alpha * 1e6, m.overhead * 1e6, format_bandwidth(m.beta), m.contention);
}

template <std::size_t N>
void print_codings(const char* title, const std::array<double, N>& seconds, std::span<const CodingInfo> codings) {
  fmt::print("{:<9}", title);
  for (std::size_t i = 1; i < N; ++i)
    fmt::print("{} {} {:.2f} ns", i == 1 ? "" : ",", codings[i].name, seconds[i] * 1e9);
  fmt::print(" per entry more than {}\n", codings[0].name);
}

constexpr double kLargestN = 0x1p32;
constexpr double kExtreme = 0x1p10;  // a network so many times faster or slower

bool chooses_dense(const Problem& problem, const Profile& profile, const ChoiceOptions& options) {
  return rank_candidates(problem, profile, options).front().method.preset == "dense";
}

}  // namespace

std::string format_bandwidth(double beta) { return beta > 0 ? fmt::format("{:.3g} GB/s", 1e-9 / beta) : "unlimited"; }

Problem make_problem(double n, double density, int P, double overlap) {
  require(n >= 1 && n < 0x1p32, "n = ", n, ", but it must be in 1..2^32 - 1");
  require(density > 0 && density <= 1, "--density ", density, ": it must be in (0, 1]");
  require(overlap >= 0 && overlap <= 1, "--overlap ", overlap, ": it must be in 0..1");
  return {.n = n, .k = std::max(1.0, n * density), .P = P, .union_exponent = overlap};
}

nlohmann::json with_dense(nlohmann::json row, double dense_seconds) {
  row["dense_seconds"] = dense_seconds;
  return row;
}

std::string times_dense(const nlohmann::json& row) {
  const double seconds = row["seconds"];
  return format_fixed(seconds > 0 ? row["dense_seconds"].get<double>() / seconds : 1.0, 2);
}

void print_profile(const Profile& profile) {
  fmt::print("profile   {}\n", profile.name);
  print_machine("network", profile.machine);
  if (profile.inside) print_machine("in a host", *profile.inside);
  if (profile.leaders) print_machine("leaders", *profile.leaders);
  if (profile.ranks_per_host > 1) fmt::print("{:<9} {} ranks\n", "a host", profile.ranks_per_host);
  fmt::print(
      "{:<9} {:.2f} ns per sparse entry that is merged, {:.2f} ns per dense value, {:.2f} ns "
      "per gradient value accumulated and selected from\n",
      "processor", profile.machine.gamma * 1e9, profile.machine.delta * 1e9, profile.machine.sigma * 1e9);
  print_codings("indices", profile.index_seconds, index_codings());
  print_codings("values", profile.value_seconds, value_codings());
}

nlohmann::json to_json(const Candidate& c, const Problem& problem, const Profile& profile) {
  Machine machine = profile.machine_with(c.method.codec, c.method.group > 1);
  const double exchange = seconds(c.cost, machine);
  machine.gamma = machine.delta = 0;
  const double network = seconds(c.cost, machine);
  const double compute = exchange - network + c.compute;
  return {{"method", to_string(c.method)},
          {"preset", c.method.preset},
          {"codec", to_string(c.method.codec)},
          {"skips", c.method.skips},
          {"group", c.method.group},
          {"overridden", c.overridden},
          {"n", problem.n},
          {"k", problem.k},
          {"ranks", problem.P},
          {"rounds", c.cost.rounds},
          {"messages", c.cost.messages},
          {"bytes", c.cost.bytes},
          {"network_seconds", network},
          {"compute_seconds", compute},
          {"other_seconds", std::max(0.0, c.seconds - network - compute)},
          {"seconds", c.seconds}};
}

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
