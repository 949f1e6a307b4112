// SPDX-License-Identifier: Apache-2.0
// `oktopk predict`: the cost model's table of all presets for one problem on one machine.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/base/error.h"
#include "oktopk/reduce/nodes.h"
#include "tools/commands.h"
#include "tools/options.h"

namespace oktopk {
namespace {

struct PredictOptions {
  MethodOptions method;
  std::string n = "25M";
  std::string ranks = "16";
  Machine machine = {.alpha = 3e-6, .beta = 8e-11};
  double union_exponent = 1;
  std::string json_file;
};

const std::vector<TextTable::Column> kPredictColumns = {{"preset", -10},    {"P", 6},        {"messages", 9},
                                                        {"bytes/rank", 12}, {"words/k", 9},  {"at most", 9},
                                                        {"time", 12},       {"refresh", 12}, {"x dense", 8}};

// Prints one preset and gives its row as JSON.
nlohmann::json predict_row(const std::string& name, Problem problem, const PredictOptions& o) {
  const Machine& machine = o.machine;
  const auto dense = make_allreduce(find_preset("dense"), {});
  const double dense_seconds = seconds(dense->predict(problem).expected, machine);
  const auto allreduce = make_allreduce(find_preset(name), o.method.reducer(name).allreduce);
  const int group = o.method.ranks_per_node();
  const Prediction steady = predict_in_nodes(*allreduce, problem, group);
  problem.refresh = true;
  const double refresh = seconds(predict_in_nodes(*allreduce, problem, group).expected, machine);
  const double time = seconds(steady.expected, machine);
  TextTable(kPredictColumns)
      .print({name, std::to_string(problem.P), format_fixed(steady.expected.messages, 0),
              format_bytes(steady.expected.bytes), format_fixed(steady.expected.bytes / 4 / problem.k, 3),
              format_fixed(steady.bound.bytes / 4 / problem.k, 3), format_seconds(time), format_seconds(refresh),
              format_fixed(time > 0 ? dense_seconds / time : 0.0, 2)});
  return {{"preset", name},
          {"ranks", problem.P},
          {"n", problem.n},
          {"k", problem.k},
          {"messages", steady.expected.messages},
          {"bytes", steady.expected.bytes},
          {"bound_messages", steady.bound.messages},
          {"bound_bytes", steady.bound.bytes},
          {"seconds", time},
          {"refresh_seconds", refresh}};
}

int run_predict(const PredictOptions& o) {
  const auto names = o.method.names();
  const Machine& m = o.machine;
  require(m.alpha >= 0 && m.beta >= 0 && m.gamma >= 0 && m.overhead >= 0,
          "--alpha, --beta, --gamma and --overhead must not be negative");
  require(o.union_exponent >= 0 && o.union_exponent <= 1, "--overlap ", o.union_exponent, ": it must be in 0..1");
  const auto n = static_cast<double>(parse_count(o.n));
  require(n >= 1, "-b ", o.n, ": n must be at least 1");
  const double k = std::max(1.0, n * o.method.density);
  const std::vector<int> ranks = parse_ranks(o.ranks, "--ranks");
  o.method.check(ranks);
  require(o.method.ranks_per_node() >= 1, "--group host: predict knows no hosts; give a number of ranks");
  check_writable(o.json_file);
  for (const std::string& name : names)
    require(name != "auto", "--preset auto: oktopk explain says what it would choose");
  fmt::print("# n = {:.0f}, k = {:.0f}, codec {}, skips {}, alpha = {}, beta = {} s/B, gamma = {} ns\n", n, k,
             o.method.codec, o.method.skips, format_seconds(m.alpha), m.beta, m.gamma * 1e9);
  TextTable(kPredictColumns).print_head();
  nlohmann::json rows = nlohmann::json::array();
  for (const int P : ranks)
    for (const std::string& name : names)
      rows.push_back(predict_row(name, {.n = n, .k = k, .P = P, .union_exponent = o.union_exponent}, o));
  write_json(o.json_file, {{"tool", "oktopk predict"},
                           {"version", OKTOPK_VERSION},
                           {"alpha", m.alpha},
                           {"beta", m.beta},
                           {"gamma", m.gamma},
                           {"options", o.method.json()},
                           {"rows", rows}});
  return 0;
}

}  // namespace

void add_predict(CLI::App& app, Action& action) {
  auto* sub = app.add_subcommand("predict", "the cost model's table of all presets");
  auto o = std::make_shared<PredictOptions>();
  sub->add_option("-b,--size", o->n, "n in elements (K, M, G)")->capture_default_str();
  sub->add_option("--ranks", o->ranks, "number of ranks, or several with commas")->capture_default_str();
  sub->add_option("--alpha", o->machine.alpha, "seconds per round: the latency of a message")->capture_default_str();
  sub->add_option("--overhead", o->machine.overhead, "seconds per message, of the sender and the receiver")
      ->capture_default_str();
  sub->add_option("--beta", o->machine.beta, "seconds per byte and direction (100 Gbit/s: 8e-11)")
      ->capture_default_str();
  sub->add_option("--gamma", o->machine.gamma, "seconds per sparse entry that is merged")->capture_default_str();
  sub->add_option("--overlap", o->union_exponent,
                  "g: m ranks' selections overlap like those of m^g random ones; 0: identical")
      ->capture_default_str();
  sub->add_option("-J,--json", o->json_file, "also write the rows to this file");
  o->method.add_to(*sub);
  sub->footer(
      "time: a steady step, rounds*alpha + messages*overhead + bytes*beta + entries*gamma; a message of a round is "
      "sent\n"
      "while the one before is on the wire (docs/tuning.md). refresh: a step that also re-evaluates thresholds and "
      "cuts.\n"
      "at most: the bound on words/k.");
  sub->callback([&action, o] { action = [o] { return run_predict(*o); }; });
}

}  // namespace oktopk
