// SPDX-License-Identifier: Apache-2.0
// `oktopk simulate`: steps of any presets on 16 to 1024 ranks of machines that are not here. The
// library's own MPI transport runs under SimGrid's SMPI, all ranks in one process, which computes
// when each message would arrive (tools/simulate).
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "oktopk/allreduce/presets.h"
#include "oktopk/base/error.h"
#include "tools/commands.h"
#include "tools/options.h"
#include "tools/simulate/experiment.h"
#include "tools/simulate/methods.h"
#include "tools/simulate/problem.h"
#include "tools/simulate/simulate_table.h"
#include "tools/simulate/smpirun.h"
#include "tools/text.h"

namespace oktopk {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr double kDataBytes = 2 * kGiB;  // a preset that can send sizes instead does so above this

struct SimulateOptions {
  MethodOptions method;  // presets, density and tau'
  MethodWishes wishes;
  SizeOptions size;
  std::string platform = "flat-25g";
  std::string ranks = "16,64";
  std::string support = "iid";
  std::string slow_host, slow_link;
  std::string provoke;
  std::string json_file;
  std::uint64_t seed = 1;
  int steps = 2;
  int warm_up = 2;
  double memory = 12;  // GiB
  KernelCosts kernels;
};

// "RANK:FACTOR" as a Slow, SlowHost or SlowLink; empty: none.
template <class Slow>
Slow parse_slow(const std::string& text, std::string_view what, const std::vector<int>& ranks) {
  Slow slow;
  if (text.empty()) return slow;
  const char* end = text.data() + text.size();
  const auto [colon, error] = std::from_chars(text.data(), end, slow.rank);
  bool is_good = error == std::errc() && colon != end && *colon == ':';
  if (is_good) {
    const auto [rest, bad] = std::from_chars(colon + 1, end, slow.factor);
    is_good = bad == std::errc() && rest == end;
  }
  require(is_good && slow.rank >= 0 && slow.factor >= 1 && slow.factor <= 1e6, what, " ", text,
          ": it must be RANK:FACTOR, with a factor of 1 to 1e6");
  for (const int P : ranks) require(slow.rank < P, what, " ", text, ": there is no rank ", slow.rank, " of ", P);
  return slow;
}

SimulationSpec make_spec(const SimulateOptions& o, const Platform& platform, int P) {
  SimulationSpec spec;
  spec.P = P;
  spec.presets = o.method.names();
  spec.support = o.support;
  spec.seed = o.seed;
  spec.steps = o.steps;
  spec.warm_up = o.warm_up;
  spec.tau = o.method.tau;
  spec.tau_prime = o.method.tau_prime;
  spec.thresholds = find_threshold_rule(o.wishes.thresholds);
  spec.kernels = o.kernels;
  spec.receive_overhead = platform.receive_overhead;
  spec.slow_host = parse_slow<SlowHost>(o.slow_host, "--slow-host", {P});
  spec.data_bytes = std::min(kDataBytes, o.memory * kGiB);
  spec.provoke = o.provoke;
  return spec;
}

void check_memory(const SimulateOptions& o, const SimulationSpec& spec, const SimulatedProblem& problem) {
  for (const Method& method : problem.methods) {
    if (!carries_data(method.preset, spec, problem)) continue;
    const double bytes = needed_bytes(method, spec, problem);
    require(bytes <= o.memory * kGiB, "preset ", method.preset, " on ", spec.P, " ranks with n = ", problem.n,
            " needs about ", fmt::format("{:.1f}", bytes / kGiB), " GiB, but --memory is ", o.memory);
  }
}

// The problem of P ranks, for these methods.
SimulatedProblem problem_for(const SimulateOptions& o, const SimulationSpec& spec, const SupportSpec& support,
                             const std::vector<Method>& methods) {
  const SimulatedProblem sketch{.n = support.n, .k = support.k, .methods = methods};
  check_memory(o, spec, sketch);
  bool voted = false;
  for (const Method& method : methods) voted = voted || starts_from_survey(method.preset, spec, sketch);
  SimulatedProblem problem = make_problem(support, voted);
  problem.methods = methods;
  return problem;
}

void add_problems(const SimulateOptions& o, const Platform& platform, SimulationSpec& spec) {
  const Profile profile = profile_of(platform, spec.kernel_prices());
  for (const Index n : o.size.sizes()) {
    const auto k = static_cast<std::size_t>(std::max(1L, std::lround(n * o.method.density)));
    SupportSpec support{.n = n, .k = k, .P = spec.P, .kind = find_support(o.support), .seed = o.seed};
    // What is chosen depends on how supports overlap, and what must be known of them on the choice.
    const Problem overlap = model_of(make_problem(support, false), spec.P);
    const auto methods = choose_methods(spec.presets, o.wishes, overlap, profile);
    SimulatedProblem problem = problem_for(o, spec, support, methods);
    int group = 1;
    std::vector<Method> flat = methods;
    for (Method& method : flat) {
      require(method.group == 1 || group == 1 || method.group == group, "--group ", group,
              ": auto would take groups of ", method.group, "; simulate one size at a time");
      group = std::max(group, method.group);
      method.group = 1;
    }
    if (group > 1) {
      SimulationSpec leaders = spec;
      leaders.P = support.P = (spec.P + group - 1) / group;
      problem.leaders = {problem_for(o, leaders, support, flat)};
    }
    spec.problems.push_back(std::move(problem));
  }
}

// The model's time of the row's steady step, with the overlap of supports that was found.
double predicted_seconds(const SimulationSpec& spec, const SimulatedProblem& p, const Method& method,
                         const Profile& profile) {
  ChoiceOptions options;
  options.allreduce.tau_prime = spec.tau_prime;
  const Candidate c = price(method, model_of(p, spec.P), profile, options);
  return c.inside + seconds(c.cost, profile.machine_with(method.codec, method.group > 1));
}

void report(const SimulationSpec& spec, const Platform& platform, const std::vector<SimulatedRow>& rows,
            nlohmann::json& results) {
  const Profile profile = profile_of(platform, spec.kernel_prices());
  std::size_t next = 0;
  for (const SimulatedProblem& problem : spec.problems) {
    const std::span<const SimulatedRow> mine(rows.data() + next, spec.presets.size());
    next += spec.presets.size();
    double dense = 0;
    for (const SimulatedRow& row : mine)
      if (row.preset == "dense") dense = row.steady;
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const Method& method = problem.methods[i];
      const SimulateTableRow line{.row = mine[i],
                                  .method = method,
                                  .predicted = predicted_seconds(spec, problem, method, profile),
                                  .dense_seconds = dense};
      print_simulate_row(line);
      results.push_back(to_json(line));
    }
  }
}

void check(const SimulateOptions& o, const std::vector<int>& ranks) {
  o.size.sizes();
  check(o.wishes);
  require(o.method.density > 0 && o.method.density <= 1, "--density ", o.method.density, ": it must be in (0, 1]");
  o.method.names();
  for (const int P : ranks)
    if (o.wishes.skips != "auto") parse_skips(o.wishes.skips, (P + o.wishes.group - 1) / o.wishes.group);
  find_support(o.support);
  parse_slow<SlowHost>(o.slow_host, "--slow-host", ranks);
  const auto link = parse_slow<SlowLink>(o.slow_link, "--slow-link", ranks);
  for (const int P : ranks) platform_xml(find_platform(o.platform), P, link);
  const bool steered = find_threshold_rule(o.wishes.thresholds) == ThresholdRule::steered;
  const int most = steered ? 1'000'000 : o.method.tau_prime - 1 - o.warm_up;
  require(o.steps >= 1 && o.steps <= most, "--steps ", o.steps, ": it must be 1 to ", most,
          steered ? "" : ", tau' less the first step and --warmup");
  require(o.warm_up >= 0, "--warmup ", o.warm_up, ": it cannot be negative");
  require(o.kernels.gamma >= 0 && o.kernels.delta >= 0, "--gamma and --delta must not be negative");
  require(o.memory > 0, "--memory ", o.memory, ": it must be positive");
  check_writable(o.json_file);
}

int run_simulate(const SimulateOptions& o) {
  const std::vector<int> ranks = parse_ranks(o.ranks, "--ranks");
  check(o, ranks);
  const SimulatorPrograms programs = find_simulator();
  const Platform& platform = find_platform(o.platform);
  const auto slow_link = parse_slow<SlowLink>(o.slow_link, "--slow-link", ranks);
  fmt::print(
      "# oktopk {} simulate: {} ({}), density {}, support {}, seed {}, {} steps, "
      "gamma {} ns, delta {} ns{}{}\n",
      OKTOPK_VERSION, platform.name, platform.summary, o.method.density, o.support, o.seed, o.steps,
      o.kernels.gamma * 1e9, o.kernels.delta * 1e9, o.slow_host.empty() ? "" : ", slow host " + o.slow_host,
      o.slow_link.empty() ? "" : ", slow link " + o.slow_link);
  print_simulate_head();
  const Machine machine = platform.machine();
  nlohmann::json rows = nlohmann::json::array();
  for (const int P : ranks) {
    SimulationSpec spec = make_spec(o, platform, P);
    add_problems(o, platform, spec);
    const SimulatedRun run = run_simulator(programs, platform, slow_link, spec);
    if (run.failed) {
      fmt::print(stderr, "oktopk: the simulation of {} ranks failed:\n{}", P, run.log);
      return 1;
    }
    report(spec, platform, run.rows, rows);
  }
  write_json(o.json_file,
             {{"tool", "oktopk simulate"},
              {"version", OKTOPK_VERSION},
              {"platform", o.platform},
              {"machine", {{"alpha", machine.alpha}, {"beta", machine.beta}, {"overhead", machine.overhead}}},
              {"support", o.support},
              {"warm_up", o.warm_up},
              {"seed", o.seed},
              {"steps", o.steps},
              {"gamma", o.kernels.gamma},
              {"delta", o.kernels.delta},
              {"slow_host", o.slow_host},
              {"slow_link", o.slow_link},
              {"density", o.method.density},
              {"tau_prime", o.method.tau_prime},
              {"thresholds", o.wishes.thresholds},
              {"rows", rows}});
  return 0;
}

void add_options(CLI::App& sub, SimulateOptions& o) {
  std::string names;
  for (const Platform& p : platforms()) names += fmt::format("{}{}", names.empty() ? "" : ", ", p.name);
  sub.add_option("--platform", o.platform, names)->capture_default_str();
  sub.add_option("--ranks", o.ranks, "number of ranks, or several with commas")->capture_default_str();
  o.size.add_to(sub);
  sub.add_option("--preset", o.method.presets, "one preset, several with commas, all, or auto")->capture_default_str();
  sub.add_option("--density", o.method.density, "k / n, in (0, 1]")->capture_default_str();
  sub.add_option("--codec", o.wishes.codec,
                 "index+value coding; auto: circulant's by the tuner, coo32+fp32 for the others")
      ->capture_default_str();
  sub.add_option("--skips", o.wishes.skips, "circulant's schedule; auto: by the tuner")->capture_default_str();
  sub.add_option("--group", o.wishes.group, "ranks that sum densely before the sparse part")->capture_default_str();
  sub.add_option("--tau-prime", o.method.tau_prime, "oktopk: steps between exact thresholds")->capture_default_str();
  sub.add_option("--support", o.support, "who selects what: iid, correlated or layered")->capture_default_str();
  sub.add_option("--seed", o.seed, "of the selections")->capture_default_str();
  sub.add_option("--steps", o.steps, "steady steps, after a first one")->capture_default_str();
  sub.add_option("--thresholds", o.wishes.thresholds, "oktopk: paper, published or steered")->capture_default_str();
  sub.add_option("-w,--warmup", o.warm_up, "steps before those: thresholds settle")->capture_default_str();
  sub.add_option("--gamma", o.kernels.gamma, "seconds of the processor per sparse entry")->capture_default_str();
  sub.add_option("--delta", o.kernels.delta, "seconds of the processor per dense value")->capture_default_str();
  sub.add_option("--slow-host", o.slow_host, "RANK:FACTOR: this rank computes so much slower");
  sub.add_option("--slow-link", o.slow_link, "RANK:FACTOR: this rank's link is so much slower");
  sub.add_option("--memory", o.memory, "GiB that all ranks together may need")->capture_default_str();
  sub.add_option("-J,--json", o.json_file, "also write the rows to this file");
  sub.add_option("--provoke", o.provoke, "deadlock, abort or error, to see it reported")->group("");  // hidden
}

}  // namespace

void add_simulate(CLI::App& app, Action& action) {
  auto* sub = app.add_subcommand("simulate", "the MPI transport on up to 1024 simulated ranks (needs SimGrid)");
  auto o = std::make_shared<SimulateOptions>();
  add_options(*sub, *o);
  sub->footer(
      "Columns: carries: data, or messages of the same sizes where the data would not fit here.\n"
      "steady, refresh, mean: simulated time, from one instant for all ranks to the last one's "
      "end, of a steady step,\n"
      "of the first step (which sets thresholds), and on average with refreshes where the "
      "simulated steps had one; oktopk's\n"
      "with --thresholds paper or published every tau' steps.\n"
      "msgs, wire: per step on the busiest rank, full-duplex. predicted: the cost model's steady "
      "step on the nominal\n"
      "machine of the platform. x dense: how many times faster than dense, if that is among the "
      "presets.\n"
      "x bound: wire over 2k(P-1)/P words. Times of a simulator, not of a machine; see "
      "docs/simulation.md.");
  sub->callback([&action, o] { action = [o] { return run_simulate(*o); }; });
}

}  // namespace oktopk
