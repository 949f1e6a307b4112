// SPDX-License-Identifier: Apache-2.0
// `oktopk explain`: what the tuner would choose for one problem, every candidate with its price,
// and where the choice would be another. Local arithmetic, nothing is measured.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "oktopk/base/error.h"
#include "tools/choice_text.h"
#include "tools/commands.h"
#include "tools/profile_json.h"
#include "tools/results.h"
#include "tools/text.h"

namespace oktopk {
namespace {

struct ExplainOptions {
  ChoiceFlags choice;
  std::string n = "16M";
  std::string end;  // as bench has it; the same as n, or nothing
  std::string ranks = "16";
  double density = 0.01;
  int group = 0;
  std::string profile_file;
  std::string json_file;
};

void print_candidates(const std::vector<Candidate>& candidates, const Problem& problem, const Profile& profile) {
  double dense = 0;
  std::size_t width = 6;
  for (const Candidate& c : candidates) {
    if (c.method.preset == "dense" && dense == 0) dense = c.seconds;
    width = std::max(width, to_string(c.method).size());
  }
  fmt::print("# {:<{}} {:>6} {:>8} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7}\n", "method", width, "rounds", "messages",
             "bytes", "words/k", "network", "compute", "other", "total", "x dense");
  fmt::print("# {:<{}} {:>6} {:>8} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9}\n", "", width, "", "", "(/rank)", "", "(ms)",
             "(ms)", "(ms)", "(ms)");
  for (const Candidate& c : candidates) {
    const TimeParts parts = time_parts(c, profile);
    fmt::print(
        "  {:<{}} {:>6.0f} {:>8.0f} {:>10} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} "
        "{:>7.2f}{}\n",
        to_string(c.method), width, c.cost.rounds, c.cost.messages, format_bytes(c.cost.bytes),
        c.cost.bytes / 4 / problem.k, parts.network * 1e3, parts.compute * 1e3, parts.other * 1e3, c.seconds * 1e3,
        c.seconds > 0 ? dense / c.seconds : 1.0, c.overridden ? "  overridden" : "");
  }
}

nlohmann::json to_json(const Crossovers& found) {
  const auto value = [](const std::optional<double>& x) { return x ? nlohmann::json(*x) : nlohmann::json(nullptr); };
  return {{"dense_wins", found.dense_wins},
          {"n_below", value(found.n_below)},
          {"n_above", value(found.n_above)},
          {"density_below", value(found.density_below)},
          {"density_above", value(found.density_above)},
          {"beta_below", value(found.beta_below)},
          {"beta_above", value(found.beta_above)}};
}

int run_explain(const ExplainOptions& o) {
  const std::vector<int> ranks = parse_ranks(o.ranks, "--ranks");
  require(ranks.size() == 1, "--ranks ", o.ranks, ": one number of ranks, please");
  const std::uint64_t n = parse_count(o.n);
  require(o.end.empty() || parse_count(o.end) == n, "-e ", o.end, ": explain takes one size, and -b is ", o.n,
          ": leave -e out, or give both the same");
  const Problem problem = make_problem(static_cast<double>(n), o.density, ranks.front(), o.choice.overlap);
  Profile profile = o.profile_file.empty() ? Profile{} : read_profile(o.profile_file);
  ChoiceOptions options = o.choice.options();
  require(o.group >= 0 && o.group <= problem.P, "--group ", o.group, ": it must be in 1..", problem.P);
  if (o.group > 0) profile.ranks_per_host = o.group;
  options.groups = profile.ranks_per_host > 1;
  options.external_dense = profile.external_dense.has_value();
  check_writable(o.json_file);
  const auto candidates = rank_candidates(problem, profile, options);
  const Crossovers crossovers = find_crossovers(problem, profile, options);
  const std::string why = explanation(candidates, problem, profile, options, crossovers);
  fmt::print("problem   n = {:.0f}, k = {:.0f}, P = {}, values no coarser than {}\n", problem.n, problem.k, problem.P,
             o.choice.coarsest);
  print_profile(profile);
  print_candidates(candidates, problem, profile);
  fmt::print("{}\n", why);
  nlohmann::json rows = nlohmann::json::array();
  for (const Candidate& c : candidates) rows.push_back(to_json(c, problem, profile));
  write_json(o.json_file, {{"tool", "oktopk explain"},
                           {"version", OKTOPK_VERSION},
                           {"profile", to_json(profile)},
                           {"overrides", to_json(options.overrides)},
                           {"rows", rows},
                           {"crossovers", to_json(crossovers)},
                           {"why", why}});
  return 0;
}

}  // namespace

void add_explain(CLI::App& app, Action& action) {
  auto* sub = app.add_subcommand("explain", "what the tuner would choose for a problem, and why");
  auto o = std::make_shared<ExplainOptions>();
  sub->add_option("-b,--size", o->n, "n in elements (K, M, G)")->capture_default_str();
  sub->add_option("-e,--end", o->end, "as bench has it: here the same as -b, or left out");
  sub->add_option("--density", o->density, "k / n, in (0, 1]")->capture_default_str();
  sub->add_option("--ranks", o->ranks, "number of ranks")->capture_default_str();
  sub->add_option("--profile", o->profile_file, "what oktopk tune -o wrote (default: 25 Gbit/s Ethernet, assumed)");
  sub->add_option("--group", o->group, "ranks per host, which may sum densely before the sparse part");
  o->choice.add_to(*sub);
  sub->add_option("-J,--json", o->json_file, "also write all this to a file");
  sub->footer(
      "network: rounds*latency + messages*overhead + bytes/bandwidth. compute: coding, merging and "
      "adding what\n"
      "arrives, and the pass over n. other: sums inside groups, and refresh steps shared among the "
      "steps they serve.\n"
      "words/k: 4-byte words per rank and selected entry. The first row is what would be chosen.");
  sub->callback([&action, o] { action = [o] { return run_explain(*o); }; });
}

}  // namespace oktopk
