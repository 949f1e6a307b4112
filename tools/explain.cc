// SPDX-License-Identifier: Apache-2.0
// `oktopk explain`: the tuner's choice for one problem, every candidate with its price, and where the choice would
// change. Pure arithmetic: nothing is measured.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "oktopk/base/error.h"
#include "tools/choice_text.h"
#include "tools/commands.h"
#include "tools/crossover.h"
#include "tools/options.h"

namespace oktopk {
namespace {

struct ExplainOptions {
  ChoiceFlags choice;
  std::string n = "16M";
  std::string end;  // an option of bench; here the same as n, or empty
  std::string ranks = "16";
  double density = 0.01;
  int group = 0;
  std::string profile_file;
  std::string json_file;
};

// The rows of all candidates, printed with the time of `dense`.
nlohmann::json print_candidates(const std::vector<Candidate>& candidates, const Problem& problem,
                                const Profile& profile, double dense) {
  nlohmann::json rows = nlohmann::json::array();
  std::size_t width = 6;
  for (const Candidate& c : candidates) {
    rows.push_back(to_json(c, problem, profile));
    width = std::max(width, to_string(c.method).size());
  }
  const auto ms = fixed(3, 1e3);
  const auto is_overridden = [](bool overridden) { return overridden ? "overridden" : ""; };
  const TextTable table({{"method", "method", {}, -static_cast<int>(width)},
                         {"rounds", "rounds", fixed(0), 6},
                         {"messages", "messages", fixed(0), 8},
                         {"bytes", "bytes", format_bytes, 10, "(/rank)"},
                         {"words/k", "", words_per_k("bytes"), 9},
                         {"network", "network_seconds", ms, 9, "(ms)"},
                         {"compute", "compute_seconds", ms, 9, "(ms)"},
                         {"other", "other_seconds", ms, 9, "(ms)"},
                         {"total", "seconds", ms, 9, "(ms)"},
                         {"x dense", "", times_dense, 7},
                         {"", "overridden", is_overridden, -10}});
  table.print_head();
  for (const nlohmann::json& row : rows) table.print(with_dense(row, dense));
  return rows;
}

// "16M", "40.1K", "12": as n is written on the command line.
std::string count_text(double n) {
  if (n >= 0x1p30) return fmt::format("{:.3g}G", n / 0x1p30);
  if (n >= 0x1p20) return fmt::format("{:.3g}M", n / 0x1p20);
  return n >= 0x1p10 ? fmt::format("{:.3g}K", n / 0x1p10) : fmt::format("{:.0f}", n);
}

std::string reason(const std::vector<Candidate>& candidates, const Problem& problem, const ChoiceOptions& options,
                   double dense) {
  const Candidate& first = candidates.front();
  const auto least = std::ranges::min_element(candidates, {}, &Candidate::seconds);
  if (first.overridden)
    return fmt::format("because the rule \"{}\" says so; the model's fastest is {}, at {:.2f}x the speed",
                       options.overrides.match(problem)->text, to_string(least->method),
                       first.seconds / least->seconds);
  std::string text =
      first.method.preset != "dense"
          ? fmt::format("because it is {:.3g}x as fast as dense ({} against {})", dense / first.seconds,
                        format_seconds(first.seconds), format_seconds(dense))
          : fmt::format("because nothing sparse is faster ({} takes {}, dense {})", to_string(candidates[1].method),
                        format_seconds(candidates[1].seconds), format_seconds(first.seconds));
  if (&*least != &first)
    text += fmt::format("; {} is {:.1f}% faster still, too little to prefer it", to_string(least->method),
                        100 * (first.seconds / least->seconds - 1));
  return text;
}

std::string limits(const Profile& profile, const Crossovers& found) {
  std::vector<std::string> where;
  const std::string now = " (now " + format_bandwidth(profile.machine.beta) + ")";
  const auto density_text = [](double density) { return fmt::format("{:.3g}", density); };
  const auto add = [&](const char* name, const std::string& text, const auto& format, const std::string& end = "") {
    if (const auto x = found.at.at(name)) where.push_back(text + format(*x) + end);
  };
  add("n_below", "below n = ", count_text);
  add("n_above", "above n = ", count_text);
  add("density_below", "below density ", density_text);
  add("density_above", "above density ", density_text);
  add("beta_below", "on a network faster than ", format_bandwidth, now);
  add("beta_above", "on a network slower than ", format_bandwidth, now);
  const char* other = found.dense_wins ? "A sparse method" : "Dense";
  if (where.empty())
    return fmt::format(
        "{} would be the better choice at no other n or density, nor at any bandwidth within a factor of 1024.", other);
  const std::string last = where.back();
  where.pop_back();
  return fmt::format("{} would be the better choice {}{}{}, all else equal.", other, fmt::join(where, ", "),
                     where.empty() ? "" : " or ", last);
}

nlohmann::json to_json(const Crossovers& found) {
  nlohmann::json json = {{"dense_wins", found.dense_wins}};
  for (const auto& [name, x] : found.at) json[name] = x ? nlohmann::json(*x) : nlohmann::json(nullptr);
  return json;
}

int run_explain(const ExplainOptions& o) {
  const std::vector<int> ranks = parse_ranks(o.ranks, "--ranks");
  require(ranks.size() == 1, "--ranks ", o.ranks, ": one number of ranks, please");
  require(o.end.empty() || parse_count(o.end) == parse_count(o.n), "-e ", o.end, ": explain takes one size, and -b is ",
          o.n, ": leave -e out, or give both the same");
  const Problem problem = make_problem(o.n, o.density, ranks.front(), o.choice.overlap);
  Profile profile = o.profile_file.empty() ? Profile{} : read_profile(o.profile_file);
  ChoiceOptions options = o.choice.options();
  require(o.group >= 0 && o.group <= problem.P, "--group ", o.group, ": it must be in 1..", problem.P);
  if (o.group > 0) profile.ranks_per_host = o.group;
  options.groups = profile.ranks_per_host > 1;
  options.external_dense = profile.external_dense.has_value();
  check_writable(o.json_file);
  const auto candidates = rank_candidates(problem, profile, options);
  const Crossovers crossovers = find_crossovers(problem, profile, options);
  const double dense =
      std::ranges::find_if(candidates, [](const Candidate& c) { return c.method.preset == "dense"; })->seconds;
  const std::string why = fmt::format("{}, {}. {}", to_string(candidates.front().method),
                                      reason(candidates, problem, options, dense), limits(profile, crossovers));
  fmt::print("problem   n = {:.0f}, k = {:.0f}, P = {}, values no coarser than {}\n", problem.n, problem.k, problem.P,
             o.choice.coarsest);
  print_profile(profile);
  const nlohmann::json rows = print_candidates(candidates, problem, profile, dense);
  fmt::print("{}\n", why);
  write_json(o.json_file, {{"tool", "oktopk explain"},
                           {"version", OKTOPK_VERSION},
                           {"profile", nlohmann::json::parse(to_json(profile))},
                           {"overrides", to_string(options.overrides)},
                           {"rows", rows},
                           {"crossovers", to_json(crossovers)},
                           {"why", why}});
  return 0;
}

}  // namespace

void add_explain(CLI::App& app, Action& action) {
  auto* sub = app.add_subcommand("explain", "the tuner's choice for a problem, and the reason");
  auto o = std::make_shared<ExplainOptions>();
  sub->add_option("-b,--size", o->n, "n in elements (K, M, G)");
  sub->add_option("-e,--end", o->end, "for the command line of bench: the same as -b, or left out");
  sub->add_option("--density", o->density, "k / n, in (0, 1]");
  sub->add_option("--ranks", o->ranks, "number of ranks");
  sub->add_option("--profile", o->profile_file, "a file of oktopk tune -o (default: 25 Gbit/s Ethernet, assumed)");
  sub->add_option("--group", o->group, "ranks per host, which may sum densely before the sparse part");
  o->choice.add_to(*sub);
  sub->add_option("-J,--json", o->json_file, "also write all this to a file");
  sub->footer(
      "network: rounds*latency + messages*overhead + bytes/bandwidth. compute: coding, merging and adding entries and\n"
      "values that arrive, and the pass over n. other: sums inside groups, and refresh steps shared among the steps\n"
      "that they serve. words/k: 4-byte words per rank and selected entry. The first row is the choice.");
  sub->callback([&action, o] { action = [o] { return run_explain(*o); }; });
}

}  // namespace oktopk
