// SPDX-License-Identifier: Apache-2.0
// `oktopk explain`: the tuner's choice for one problem, every candidate with its price, and where the choice would
// change; with --all, the cost model's table of all presets. Pure arithmetic: nothing is measured.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/base/error.h"
#include "oktopk/reduce/nodes.h"
#include "tools/choice.h"
#include "tools/commands.h"

namespace oktopk {
namespace {

struct ExplainOptions {
  ChoiceFlags choice;
  MethodOptions method;  // density and group; the others with --all only
  std::string n = "16M";
  std::string ranks = "16";
  std::optional<double> alpha, overhead, beta, gamma;  // in place of the profile's
  std::string profile_file;
  std::string json_file;
  bool all = false;
  bool has_group = false;

  Profile profile() const {
    Profile profile = profile_file.empty() ? Profile{} : read_profile(profile_file);
    Machine& m = profile.machine;
    m.alpha = alpha.value_or(m.alpha);
    m.overhead = overhead.value_or(m.overhead);
    m.beta = beta.value_or(m.beta);
    m.gamma = gamma.value_or(m.gamma);
    require(m.alpha >= 0 && m.beta >= 0 && m.gamma >= 0 && m.overhead >= 0,
            "--alpha, --beta, --gamma and --overhead must not be negative");
    return profile;
  }
  Problem problem(int P) const {
    return make_problem(static_cast<double>(parse_count(n, "-b")), method.density, P, choice.overlap);
  }
  int group() const {
    const int group = method.ranks_per_node();
    require(group >= 1, "--group host: explain knows no hosts; give a number of ranks");
    return group;
  }
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
  require(ranks.size() == 1, "--ranks ", o.ranks, ": one number of ranks, please; --all takes several");
  const Problem problem = o.problem(ranks.front());
  Profile profile = o.profile();
  ChoiceOptions options = o.choice.options();
  require(o.group() <= problem.P, "--group ", o.group(), ": it must be in 1..", problem.P);
  if (o.has_group) profile.ranks_per_host = o.group();
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

TextTable predict_table() {
  return TextTable({{"preset", "preset", {}, -10},
                    {"P", "ranks", {}, 6},
                    {"messages", "messages", fixed(0), 9},
                    {"bytes/rank", "bytes", format_bytes, 12},
                    {"words/k", "", words_per_k("bytes"), 9},
                    {"at most", "", words_per_k("bound_bytes"), 9},
                    {"time", "seconds", format_seconds, 12},
                    {"refresh", "refresh_seconds", format_seconds, 12},
                    {"x dense", "", times_dense, 8}});
}

nlohmann::json predict_row(const std::string& name, Problem problem, const ExplainOptions& o, const Machine& machine) {
  const auto allreduce = make_allreduce(find_preset(name), o.method.reducer(name).allreduce);
  const Prediction steady = predict_in_nodes(*allreduce, problem, o.group());
  problem.refresh = true;
  return {{"preset", name},
          {"ranks", problem.P},
          {"n", problem.n},
          {"k", problem.k},
          {"messages", steady.expected.messages},
          {"bytes", steady.expected.bytes},
          {"bound_messages", steady.bound.messages},
          {"bound_bytes", steady.bound.bytes},
          {"seconds", seconds(steady.expected, machine)},
          {"refresh_seconds", seconds(predict_in_nodes(*allreduce, problem, o.group()).expected, machine)}};
}

// The table of all presets, for any numbers of ranks.
int run_all(const ExplainOptions& o) {
  const auto names = o.method.names();
  const Machine m = o.profile().machine;
  const std::vector<int> ranks = parse_ranks(o.ranks, "--ranks");
  o.method.check(ranks);
  o.group();
  check_writable(o.json_file);
  for (const std::string& name : names)
    require(name != "auto", "--preset auto: oktopk explain without --all says what it would choose");
  Problem problem = o.problem(ranks.front());
  fmt::print("# n = {:.0f}, k = {:.0f}, codec {}, skips {}, alpha = {}, beta = {} s/B, gamma = {} ns, overhead = {}\n",
             problem.n, problem.k, o.method.codec, o.method.skips, format_seconds(m.alpha), m.beta, m.gamma * 1e9,
             format_seconds(m.overhead));
  const TextTable table = predict_table();
  table.print_head();
  nlohmann::json rows = nlohmann::json::array();
  const auto dense = make_allreduce(find_preset("dense"), {});
  for (const int P : ranks)
    for (const std::string& name : names) {
      problem.P = P;
      rows.push_back(predict_row(name, problem, o, m));
      table.print(with_dense(rows.back(), seconds(dense->predict(problem).expected, m)));
    }
  write_json(o.json_file, {{"tool", "oktopk explain --all"},
                           {"version", OKTOPK_VERSION},
                           {"alpha", m.alpha},
                           {"beta", m.beta},
                           {"gamma", m.gamma},
                           {"overhead", m.overhead},
                           {"options", o.method.json()},
                           {"rows", rows}});
  return 0;
}

}  // namespace

void add_explain(CLI::App& app, Action& action) {
  auto* sub = app.add_subcommand("explain", "the tuner's choice for a problem, and the reason");
  sub->group("Decide");
  auto o = std::make_shared<ExplainOptions>();
  sub->add_flag("--all", o->all, "what the cost model says of each preset, instead of the choice");
  sub->add_option("-b,--size", o->n, "n in elements (K, M, G)");
  sub->add_option("--ranks", o->ranks, "number of ranks; with --all several with commas");
  o->method.add_problem_to(*sub);
  sub->add_option("--profile", o->profile_file, "a file of oktopk tune -o (default: 25 Gbit/s Ethernet, assumed)");
  sub->add_option("--alpha", o->alpha, "seconds per round, the latency of a message (default: the profile's)");
  sub->add_option("--overhead", o->overhead, "seconds per message, of the sender and the receiver");
  sub->add_option("--beta", o->beta, "seconds per byte and direction (25 Gbit/s: 3.2e-10; 100 Gbit/s: 8e-11)");
  sub->add_option("--gamma", o->gamma, "seconds per sparse entry that is merged");
  o->choice.add_to(*sub);
  add_json_to(*sub, o->json_file);
  add_refused(*sub, "-e,--end", "explain takes one size, -b");
  sub->option_defaults()->group("With --all");
  o->method.add_to(*sub, /*with_auto=*/false);
  for (CLI::Option* option : sub->get_options())
    if (option->get_group() == "With --all") option->needs("--all");
  sub->footer(
      "network: rounds*latency + messages*overhead + bytes/bandwidth. compute: coding, merging and adding entries and\n"
      "values that arrive, and the pass over n. other: sums inside groups, and refresh steps shared among the steps\n"
      "that they serve. words/k: 4-byte words per rank and selected entry. The first row is the choice.\n"
      "--all: time of a steady step, rounds*alpha + messages*overhead + bytes*beta + entries*gamma; refresh: of a "
      "step\n"
      "that also re-evaluates thresholds and cuts; at most: the bound on words/k (docs/tuning.md).");
  sub->callback([&action, o, sub] {
    o->has_group = sub->count("--group") > 0;
    for (const char* option : {"--coarsest", "--override"})
      require(!o->all || sub->count(option) == 0, option, ": not with --all, which makes no choice");
    action = [o] { return o->all ? run_all(*o) : run_explain(*o); };
  });
}

}  // namespace oktopk
