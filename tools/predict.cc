// SPDX-License-Identifier: Apache-2.0
// `oktopk predict`: the cost model's table of all presets for one problem on one machine.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/base/error.h"
#include "oktopk/reduce/node_reducer.h"
#include "tools/commands.h"
#include "tools/results.h"
#include "tools/text.h"

namespace oktopk {
namespace {

struct PredictOptions {
  MethodOptions method;
  std::string n = "25M";
  std::string ranks = "16";
  double alpha = 3e-6;
  double beta = 8e-11;
  double gamma = 0;
  double overhead = 0;
  double union_exponent = 1;
  std::string json_file;
};

void print_row(const Preset& preset, const Problem& problem, const Prediction& steady, const Prediction& refresh,
               const Machine& machine, double dense_seconds) {
  const double time = seconds(steady.expected, machine);
  fmt::print("{:<10} {:>6} {:>9.0f} {:>12} {:>9.3f} {:>9.3f} {:>12} {:>12} {:>8.2f}\n", preset.name, problem.P,
             steady.expected.messages, format_bytes(steady.expected.bytes), steady.expected.bytes / 4 / problem.k,
             steady.bound.bytes / 4 / problem.k, format_seconds(time),
             format_seconds(seconds(refresh.expected, machine)), time > 0 ? dense_seconds / time : 0.0);
}

int run_predict(const PredictOptions& o) {
  const auto names = o.method.names();
  require(o.alpha >= 0 && o.beta >= 0 && o.gamma >= 0 && o.overhead >= 0,
          "--alpha, --beta, --gamma and --overhead must not be negative");
  require(o.union_exponent >= 0 && o.union_exponent <= 1, "--overlap ", o.union_exponent, ": it must be in 0..1");
  const auto n = static_cast<double>(parse_count(o.n));
  require(n >= 1, "-b ", o.n, ": n must be at least 1");
  o.method.check(parse_ranks(o.ranks, "--ranks"));
  const int group = o.method.ranks_per_node();
  require(group >= 1, "--group host: predict knows no hosts; give a number of ranks");
  check_writable(o.json_file);
  const Machine machine{.alpha = o.alpha, .beta = o.beta, .gamma = o.gamma, .overhead = o.overhead};
  fmt::print(
      "# n = {:.0f}, k = {:.0f}, codec {}, skips {}, alpha = {}, beta = {} s/B, gamma = "
      "{} ns\n",
      n, std::max(1.0, n * o.method.density), o.method.codec, o.method.skips, format_seconds(o.alpha), o.beta,
      o.gamma * 1e9);
  fmt::print("# {:<8} {:>6} {:>9} {:>12} {:>9} {:>9} {:>12} {:>12} {:>8}\n", "preset", "P", "messages", "bytes/rank",
             "words/k", "at most", "time", "refresh", "x dense");
  nlohmann::json rows = nlohmann::json::array();
  for (const int P : parse_ranks(o.ranks, "--ranks")) {
    Problem problem{.n = n, .k = std::max(1.0, n * o.method.density), .P = P, .union_exponent = o.union_exponent};
    const auto dense = make_allreduce(find_preset("dense"), {});
    const double dense_seconds = seconds(dense->predict(problem).expected, machine);
    for (const std::string& name : names) {
      require(name != "auto", "--preset auto: oktopk explain says what it would choose");
      const Preset& preset = find_preset(name);
      const auto allreduce = make_allreduce(preset, o.method.reducer(name).allreduce);
      problem.refresh = false;
      const Prediction steady = NodeReducer::predict(*allreduce, problem, group);
      problem.refresh = true;
      const Prediction refresh = NodeReducer::predict(*allreduce, problem, group);
      print_row(preset, problem, steady, refresh, machine, dense_seconds);
      rows.push_back({{"preset", name},
                      {"ranks", P},
                      {"n", n},
                      {"k", problem.k},
                      {"messages", steady.expected.messages},
                      {"bytes", steady.expected.bytes},
                      {"bound_messages", steady.bound.messages},
                      {"bound_bytes", steady.bound.bytes},
                      {"seconds", seconds(steady.expected, machine)},
                      {"refresh_seconds", seconds(refresh.expected, machine)}});
    }
  }
  write_json(o.json_file, {{"tool", "oktopk predict"},
                           {"version", OKTOPK_VERSION},
                           {"alpha", o.alpha},
                           {"beta", o.beta},
                           {"gamma", o.gamma},
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
  sub->add_option("--alpha", o->alpha, "seconds per round: the latency of a message")->capture_default_str();
  sub->add_option("--overhead", o->overhead, "seconds per message, of the sender and the receiver")
      ->capture_default_str();
  sub->add_option("--beta", o->beta, "seconds per byte and direction (100 Gbit/s: 8e-11)")->capture_default_str();
  sub->add_option("--gamma", o->gamma, "seconds per sparse entry that is merged")->capture_default_str();
  sub->add_option("--overlap", o->union_exponent,
                  "g: m ranks' selections overlap like those of m^g random ones; 0: identical")
      ->capture_default_str();
  sub->add_option("-J,--json", o->json_file, "also write the rows to this file");
  o->method.add_to(*sub);
  sub->footer(
      "time: a steady step, rounds*alpha + messages*overhead + bytes*beta + entries*gamma; "
      "messages of one\n"
      "round are sent while the one before is on the wire (docs/tuning.md).\n"
      "refresh: a step that also "
      "re-evaluates thresholds and cuts. at most: the bound on words/k.");
  sub->callback([&action, o] { action = [o] { return run_predict(*o); }; });
}

}  // namespace oktopk
