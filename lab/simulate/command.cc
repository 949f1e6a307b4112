// SPDX-License-Identifier: Apache-2.0
// `oktopk-lab simulate`: steps of any presets on 16 to 1024 ranks of machines that are not here. The library's own MPI
// transport runs under SimGrid's SMPI, all ranks of a row in one process, which computes when each message would arrive
// (lab/simulate). Nothing printed depends on the machine that simulates: the same command prints the same bytes.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "lab/commands.h"
#include "lab/simulate/plan.h"
#include "lab/simulate/smpirun.h"
#include "oktopk/allreduce/presets.h"
#include "oktopk/base/error.h"
#include "tools/options.h"
#include "tools/text.h"

namespace oktopk {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

struct SimulateOptions {
  MethodOptions method;  // presets, density and tau'
  MethodWishes wishes;
  SizeOptions size;
  SimulationSpec spec;  // seed, steps, warm-up, prices; the rest comes from the others
  std::string platform = "flat-25g";
  std::string ranks = "16,64";
  std::string slow_host, slow_link;
  std::string json_file;
  double memory = 4;  // GiB
};

struct TableRow {
  std::string preset;
  SimulationSpec spec;
  double predicted = 0;  // seconds of a steady step by the cost model
  SimulatedRow result = {};
};

// "RANK:FACTOR"; empty: rank -1.
SlowLink parse_slow(const std::string& text, std::string_view what, const std::vector<int>& ranks) {
  SlowLink slow;
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

void check(const SimulateOptions& o, const std::vector<int>& ranks) {
  o.size.sizes();
  if (o.wishes.codec != "auto") parse_codec(o.wishes.codec);
  require(o.wishes.group >= 1, "--group ", o.wishes.group, ": it must be at least 1");
  require(o.method.density > 0 && o.method.density <= 1, "--density ", o.method.density, ": it must be in (0, 1]");
  o.method.names();
  for (const int P : ranks)
    if (o.wishes.skips != "auto") parse_skips(o.wishes.skips, (P + o.wishes.group - 1) / o.wishes.group);
  find_support(o.spec.support);
  parse_slow(o.slow_host, "--slow-host", ranks);
  const SlowLink link = parse_slow(o.slow_link, "--slow-link", ranks);
  for (const int P : ranks) platform_xml(find_platform(o.platform), P, link);
  const bool steered = find_threshold_rule(o.wishes.thresholds) == ThresholdRule::steered;
  const int most = steered ? 1'000'000 : o.spec.tau_prime - 1 - o.spec.warm_up;
  require(o.spec.steps >= 1 && o.spec.steps <= most, "--steps ", o.spec.steps, ": it must be 1 to ", most,
          steered ? "" : ", tau' less the first step and --warmup");
  check_writable(o.json_file);
}

SimulationSpec make_spec(const SimulateOptions& o, const Platform& platform, int P, Index n) {
  SimulationSpec spec = o.spec;
  spec.P = P;
  spec.n = n;
  spec.k = static_cast<std::size_t>(std::max(1L, std::lround(n * o.method.density)));
  spec.thresholds = find_threshold_rule(o.wishes.thresholds);
  spec.receive_overhead = platform.overhead;
  const SlowLink slow = parse_slow(o.slow_host, "--slow-host", {P});
  spec.slow_rank = slow.rank;
  spec.slow_factor = slow.factor;
  return spec;
}

// One row per preset, without results.
std::vector<TableRow> plan_rows(const SimulateOptions& o, const Platform& platform, SimulationSpec spec) {
  const Profile profile = profile_of(platform, spec.kernel_prices());
  SupportSpec support{.n = spec.n, .k = spec.k, .P = spec.P, .kind = find_support(o.spec.support), .seed = spec.seed};
  const Problem problem = model_of(support);
  ChoiceOptions options;
  options.allreduce.tau_prime = spec.tau_prime;
  std::vector<TableRow> rows;
  for (const std::string& preset : o.method.names()) {
    spec.method = choose_method(preset, o.wishes, problem, profile);
    support.P = spec.allreduce_ranks();
    spec.union_exponent = support.P == spec.P ? problem.union_exponent : model_of(support).union_exponent;
    spec.scale = choose_scale(spec, o.memory * kGiB);
    const Candidate c = price(spec.method, problem, profile, options);
    const Machine machine = profile.machine_with(spec.method.codec, spec.method.group > 1);
    rows.push_back({preset, spec, c.inside + seconds(c.cost, machine)});
  }
  return rows;
}

nlohmann::json row_json(const TableRow& row, double dense) {
  const Method& method = row.spec.method;
  const int P = row.spec.P;
  const std::string carries = row.spec.scale == 1 ? "data" : fmt::format("1/{}", row.spec.scale);
  const double words = row.result.wire_bytes / 4 / static_cast<double>(row.spec.k);
  nlohmann::json json = {{"preset", row.preset},
                         {"n", static_cast<double>(row.spec.n)},
                         {"k", static_cast<double>(row.spec.k)},
                         {"ranks", P},
                         {"carries", carries},
                         {"refresh_carries", carries},
                         {"method", to_string(method)},
                         {"codec", to_string(method.codec)},
                         {"skips", method.skips},
                         {"group", method.group},
                         {"predicted", row.predicted},
                         {"dense", dense},
                         {"words_per_k", words},
                         // Over the lower bound of Ok-Topk's paper, 2k(P-1)/P words. 0 for one rank.
                         {"wire_over_bound", P > 1 ? words / (2.0 * (P - 1) / P) : 0}};
  json.update(nlohmann::json(row.result));
  return json;
}

TextTable simulation_table() {
  const auto ms = fixed(4, 1e3);
  const auto quotient = [](const char* a, const char* b, int digits) {
    return [=](const nlohmann::json& row) {
      const double x = row[a], y = row[b];
      return x > 0 && y > 0 ? format_fixed(x / y, digits) : "-";
    };
  };
  return TextTable({{"n", "n", fixed(0), 10, "(elements)"},
                    {"k", "k", fixed(0), 8},
                    {"P", "ranks", {}, 5},
                    {"preset", "preset", {}, -10},
                    {"method", "method", {}, -46},
                    {"carries", "carries", {}, -7},
                    {"steady", "steady", ms, 11, "(ms)"},
                    {"refresh", "refresh", ms, 11, "(ms)"},
                    {"mean", "mean", ms, 11, "(ms)"},
                    {"msgs", "messages", fixed(0), 6, "(/rank)"},
                    {"wire", "wire_bytes", fixed(1, 1.0 / 1024), 10, "(KiB/rank)"},
                    {"words/k", "words_per_k", fixed(3), 8},
                    {"predicted", "predicted", ms, 11, "(ms)"},
                    {"sim/pred", "", quotient("steady", "predicted", 3), 8},
                    {"x dense", "", quotient("dense", "mean", 2), 7},
                    {"x bound", "wire_over_bound", fixed(3), 8}});
}

nlohmann::json header_json(const SimulateOptions& o, const Machine& machine) {
  nlohmann::json json = {
      {"tool", "oktopk-lab simulate"},
      {"version", OKTOPK_VERSION},
      {"platform", o.platform},
      {"machine", {{"alpha", machine.alpha}, {"beta", machine.beta}, {"overhead", machine.overhead}}},
      {"slow_host", o.slow_host},
      {"slow_link", o.slow_link},
      {"density", o.method.density},
      {"thresholds", o.wishes.thresholds}};
  const nlohmann::json spec = o.spec;
  for (const char* key : {"support", "warm_up", "seed", "steps", "gamma", "delta", "tau_prime"}) json[key] = spec[key];
  return json;
}

// Fills in the results; auto often takes a method that another row has. False, and a message, when one failed.
bool simulate(const SimulatorPrograms& programs, const Platform& platform, const SlowLink& slow_link,
              std::vector<TableRow>& rows) {
  for (TableRow& row : rows) {
    const auto same = std::find_if(rows.begin(), rows.end(),
                                   [&](const TableRow& other) { return other.spec.method == row.spec.method; });
    if (&*same != &row) {
      row.result = same->result;
      continue;
    }
    const SimulatedRun run = run_simulator(programs, platform, slow_link, row.spec);
    if (run.failed) {
      fmt::print(stderr, "oktopk: the simulation of {} on {} ranks failed:\n{}", row.preset, row.spec.P, run.log);
      return false;
    }
    row.result = run.row;
  }
  return true;
}

int run_simulate(const SimulateOptions& o) {
  const std::vector<int> ranks = parse_ranks(o.ranks, "--ranks");
  check(o, ranks);
  const SimulatorPrograms programs = find_simulator();
  const Platform& platform = find_platform(o.platform);
  const SlowLink slow_link = parse_slow(o.slow_link, "--slow-link", ranks);
  fmt::print(
      "# oktopk-lab {} simulate: {} ({}), density {}, support {}, seed {}, {} steps, gamma {} ns, delta {} ns{}{}\n",
      OKTOPK_VERSION, platform.name, platform.summary, o.method.density, o.spec.support, o.spec.seed, o.spec.steps,
      o.spec.gamma * 1e9, o.spec.delta * 1e9, o.slow_host.empty() ? "" : ", slow host " + o.slow_host,
      o.slow_link.empty() ? "" : ", slow link " + o.slow_link);
  const TextTable table = simulation_table();
  table.print_head();
  nlohmann::json results = nlohmann::json::array();
  for (const int P : ranks)
    for (const Index n : o.size.sizes()) {
      std::vector<TableRow> rows = plan_rows(o, platform, make_spec(o, platform, P, n));
      if (!simulate(programs, platform, slow_link, rows)) return 1;
      double dense = 0;  // not simulated
      for (const TableRow& row : rows)
        if (row.preset == "dense") dense = row.result.steady;
      for (const TableRow& row : rows) {
        results.push_back(row_json(row, dense));
        table.print(results.back());
      }
    }
  nlohmann::json json = header_json(o, platform.machine());
  json["rows"] = results;
  write_json(o.json_file, json);
  return 0;
}

void add_options(CLI::App& sub, SimulateOptions& o) {
  std::string names;
  for (const Platform& p : platforms()) names += fmt::format("{}{}", names.empty() ? "" : ", ", p.name);
  o.size.add_to(sub);
  sub.add_option("--platform", o.platform, names);
  sub.add_option("--ranks", o.ranks, "number of ranks, or several with commas");
  sub.add_option("--preset", o.method.presets, "one preset, several with commas, all, or auto");
  sub.add_option("--density", o.method.density, "k / n, in (0, 1]");
  sub.add_option("--codec", o.wishes.codec,
                 "index+value, of all presets; auto: circulant's by the tuner, coo32+fp32 for the others");
  sub.add_option("--skips", o.wishes.skips, "circulant's schedule; auto: by the tuner");
  sub.add_option("--group", o.wishes.group, "ranks that sum densely before the sparse part");
  sub.add_option("--tau-prime", o.spec.tau_prime, "oktopk: steps between exact thresholds");
  sub.add_option("--support", o.spec.support, "which indices ranks select: iid, correlated or layered");
  sub.add_option("--seed", o.spec.seed, "of the selections");
  sub.add_option("--steps", o.spec.steps, "steady steps, after a first one");
  sub.add_option("--thresholds", o.wishes.thresholds, "oktopk: paper, published or steered");
  sub.add_option("-w,--warmup", o.spec.warm_up, "steps before those: thresholds settle")->check(CLI::NonNegativeNumber);
  sub.add_option("--gamma", o.spec.gamma, "seconds of the processor per sparse entry")->check(CLI::NonNegativeNumber);
  sub.add_option("--delta", o.spec.delta, "seconds of the processor per dense value")->check(CLI::NonNegativeNumber);
  sub.add_option("--memory", o.memory, "GiB that all ranks of a row may need together")->check(CLI::PositiveNumber);
  sub.add_option("--slow-host", o.slow_host, "RANK:FACTOR: this rank computes so much slower");
  sub.add_option("--slow-link", o.slow_link, "RANK:FACTOR: this rank's link is so much slower");
  add_json_to(sub, o.json_file);
  sub.add_option("--provoke", o.spec.provoke, "deadlock, abort or error, to see it reported")->group("");  // hidden
}

}  // namespace

void add_simulate(CLI::App& app, Action& action) {
  auto* sub = app.add_subcommand("simulate", "the MPI transport on up to 1024 simulated ranks (needs SimGrid)");
  auto o = std::make_shared<SimulateOptions>();
  add_options(*sub, *o);
  sub->footer(
      "carries: data, or 1/S where all ranks together would need more than --memory: the ranks ran a problem S times\n"
      "smaller on links and processors S times slower.\n"
      "steady, refresh, mean: simulated time of a steady step, of the first step, which sets thresholds, and the "
      "mean;\n"
      "with --thresholds paper or published the mean has one refresh in tau' steps.\n"
      "msgs, wire: per step on the busiest rank, full-duplex. predicted: the cost model's steady step on the nominal\n"
      "machine of the platform. x dense: how many times faster than dense, if that is among the presets.\n"
      "x bound: wire over 2k(P-1)/P words. These are times of a simulator, not of a machine; see docs/simulation.md.");
  sub->callback([&action, o] { action = [o] { return run_simulate(*o); }; });
}

}  // namespace oktopk
