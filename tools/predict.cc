// SPDX-License-Identifier: Apache-2.0
// `oktopk predict`: the cost model's table of all presets for one problem on one machine.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/base/error.h"
#include "oktopk/reduce/nodes.h"
#include "tools/choice_text.h"
#include "tools/commands.h"
#include "tools/options.h"

namespace oktopk {
namespace {

struct PredictOptions {
  MethodOptions method;
  std::string n = "25M";
  std::string ranks = "16";
  Machine machine = Profile{}.machine;  // as explain assumes
  double overlap = 1;
  std::string json_file;
};

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

nlohmann::json predict_row(const std::string& name, Problem problem, const PredictOptions& o) {
  const auto allreduce = make_allreduce(find_preset(name), o.method.reducer(name).allreduce);
  const int group = o.method.ranks_per_node();
  const Prediction steady = predict_in_nodes(*allreduce, problem, group);
  problem.refresh = true;
  return {{"preset", name},
          {"ranks", problem.P},
          {"n", problem.n},
          {"k", problem.k},
          {"messages", steady.expected.messages},
          {"bytes", steady.expected.bytes},
          {"bound_messages", steady.bound.messages},
          {"bound_bytes", steady.bound.bytes},
          {"seconds", seconds(steady.expected, o.machine)},
          {"refresh_seconds", seconds(predict_in_nodes(*allreduce, problem, group).expected, o.machine)}};
}

int run_predict(const PredictOptions& o) {
  const auto names = o.method.names();
  const Machine& m = o.machine;
  require(m.alpha >= 0 && m.beta >= 0 && m.gamma >= 0 && m.overhead >= 0,
          "--alpha, --beta, --gamma and --overhead must not be negative");
  const std::vector<int> ranks = parse_ranks(o.ranks, "--ranks");
  o.method.check(ranks);
  require(o.method.ranks_per_node() >= 1, "--group host: predict knows no hosts; give a number of ranks");
  check_writable(o.json_file);
  for (const std::string& name : names)
    require(name != "auto", "--preset auto: oktopk explain says what it would choose");
  Problem problem = make_problem(o.n, o.method.density, ranks.front(), o.overlap);
  fmt::print("# n = {:.0f}, k = {:.0f}, codec {}, skips {}, alpha = {}, beta = {} s/B, gamma = {} ns\n", problem.n,
             problem.k, o.method.codec, o.method.skips, format_seconds(m.alpha), m.beta, m.gamma * 1e9);
  const TextTable table = predict_table();
  table.print_head();
  nlohmann::json rows = nlohmann::json::array();
  const auto dense = make_allreduce(find_preset("dense"), {});
  for (const int P : ranks)
    for (const std::string& name : names) {
      problem.P = P;
      rows.push_back(predict_row(name, problem, o));
      table.print(with_dense(rows.back(), seconds(dense->predict(problem).expected, m)));
    }
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
  sub->add_option("-b,--size", o->n, "n in elements (K, M, G)");
  sub->add_option("--ranks", o->ranks, "number of ranks, or several with commas");
  sub->add_option("--alpha", o->machine.alpha, "seconds per round: the latency of a message");
  sub->add_option("--overhead", o->machine.overhead, "seconds per message, of the sender and the receiver");
  sub->add_option("--beta", o->machine.beta, "seconds per byte and direction (25 Gbit/s: 3.2e-10; 100 Gbit/s: 8e-11)");
  sub->add_option("--gamma", o->machine.gamma, "seconds per sparse entry that is merged");
  sub->add_option("--overlap", o->overlap,
                  "g: m ranks' selections overlap like those of m^g random ones; 0: identical");
  sub->add_option("-J,--json", o->json_file, "also write the rows to this file");
  o->method.add_to(*sub, /*with_auto=*/false);
  sub->footer(
      "time: a steady step, rounds*alpha + messages*overhead + bytes*beta + entries*gamma; a message of a round is "
      "sent\n"
      "while the one before is on the wire (docs/tuning.md). refresh: a step that also re-evaluates thresholds and "
      "cuts.\n"
      "at most: the bound on words/k.");
  sub->callback([&action, o] { action = [o] { return run_predict(*o); }; });
}

}  // namespace oktopk
