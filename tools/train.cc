// SPDX-License-Identifier: Apache-2.0
// `oktopk train`: a perceptron, trained data-parallel with any presets on the same samples. `make demo` runs it.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/elastic_world.h"
#include "tools/commands.h"
#include "tools/flight_files.h"
#include "tools/options.h"
#include "tools/report/document.h"
#include "tools/status_line.h"
#include "tools/text.h"
#include "tools/train/comparison.h"
#include "tools/train/elastic_trainer.h"
#include "tools/worlds.h"

namespace oktopk {
namespace {

struct TrainCommand : TransportOptions {
  MethodOptions method;
  TrainOptions train;
  int ranks = 0;
  bool elastic = false;
  std::string nan_policy = "error";
  double decay = 1;
  int flush = -1;  // -1: as recommended
  std::string json_file, html_file, trace_file, flight_folder;
  std::string command;
};

std::string list_of(const std::vector<MemberId>& ids) {
  return ids.empty() ? "none" : fmt::format("{}", fmt::join(ids, ","));
}

void settle_options(TrainCommand& c) {
  Recipe& r = c.train.recipe;
  r.flush = c.flush < 0 ? recommends_flush(r.optimiser) : c.flush == 1;
  check(r);
  require(c.ranks >= 0, "--ranks ", c.ranks, ": it must be positive");
}

TrainOptions options_for(const TrainCommand& c, const std::string& preset) {
  TrainOptions options = c.train;
  options.reducer = c.method.reducer(preset);
  options.group = c.method.ranks_per_node();
  options.reducer.decay = static_cast<float>(c.decay);
  options.reducer.nan_policy = find_nan_policy(c.nan_policy);
  return options;
}

// Shows on the terminal how a run goes on.
std::string progress_text(const std::string& preset, const Progress& p) {
  const std::string accuracy = p.accuracy > 0 ? fmt::format("{:5.1f}%", 100 * p.accuracy) : std::string("     -");
  const std::string moved = p.bytes > 0 ? fmt::format("  moved {:>9}/rank", format_bytes(p.bytes)) : std::string();
  return fmt::format("  {:<10} step {:>6}/{}  loss {:.4f}  accuracy {}{}", preset, p.step, p.steps, p.loss, accuracy,
                     moved);
}

// All presets, one after the other, on the ranks of one world. Results are complete on rank 0.
std::vector<TrainingRun> train_all(Communicator& comm, const TrainCommand& c, const LearningProblem& problem,
                                   Trace* trace) {
  std::vector<TrainingRun> runs;
  for (const std::string& preset : c.method.names()) {
    TrainOptions options = options_for(c, preset);
    options.reducer.trace = trace;
    StatusLine line;
    runs.push_back(train(comm, problem, options, [&](const Progress& p) { line.show(progress_text(preset, p)); }));
  }
  return runs;
}

int run_train(TrainCommand& c) {
  settle_options(c);
  FlightFiles flight(c.flight_folder);
  Worlds worlds(c);
  worlds.watch(&flight);
  const int P = c.ranks > 0 ? c.ranks : worlds.default_size();
  c.method.check({P});
  if (worlds.is_root()) {
    check_writable(c.json_file);
    check_writable(c.html_file);
  }
  const LearningProblem problem = make_teacher({.seed = 1});
  TraceFile trace(c.trace_file, worlds);
  std::vector<TrainingRun> runs;
  worlds.run(P, [&](Station& station) {
    std::vector<TrainingRun> mine = train_all(station.comm, c, problem, trace.trace());
    if (station.comm.rank() == 0) runs = std::move(mine);
  });
  trace.write(worlds, P);
  if (!worlds.is_root()) return 0;
  nlohmann::json result = training_result(options_for(c, c.method.names().front()),
                                          fmt::format("{} ranks ({})", P, c.transport), problem.floor, runs);
  result.update({{"ranks", P}, {"transport", c.transport}, {"command", c.command}});
  print_training(result);
  write_json(c.json_file, result);
  if (!c.html_file.empty()) {
    write_page(c.html_file, training_document(result));
    fmt::print("# report: {}\n", c.html_file);
  }
  return std::ranges::all_of(runs, &TrainingRun::ranks_agree) ? 0 : 1;
}

void check_elastic(const TrainCommand& c) {
  require(c.transport == "tcp", "--elastic --transport ", c.transport,
          ": only transport tcp can lose a rank and go on; start with: oktopk run --keep-going -n 4 -- oktopk train "
          "--elastic");
  require(c.method.names().size() == 1, "--elastic --preset ", c.method.presets, ": it must be one preset");
  require(c.ranks == 0, "--elastic --ranks ", c.ranks, ": the launcher says how many ranks begin");
  for (const auto& [name, value] : {std::pair("--json", &c.json_file), std::pair("--html", &c.html_file),
                                    std::pair("--trace", &c.trace_file), std::pair("--flight", &c.flight_folder)})
    require(value->empty(), name, " ", *value, ": not with --elastic, whose ranks come and go");
}

void print_change(const MembershipChange& change) {
  fmt::print("  epoch {} after step {}: {} members; lost: {}; joined: {}\n", change.epoch, change.step, change.P,
             list_of(change.lost), list_of(change.joined));
  std::fflush(stdout);
}

// One member of a job whose members change. The member of the lowest rank prints.
int run_elastic(TrainCommand& c) {
  settle_options(c);
  check_elastic(c);
  const std::string preset = c.method.names().front();
  const TrainOptions options = options_for(c, preset);
  const TcpOptions tcp = c.tcp();
  const LearningProblem problem = make_teacher({.seed = 1});
  const auto world = make_tcp_elastic_world({.tcp = tcp, .least = tcp.size});
  StatusLine line;
  ElasticTrainHooks hooks;
  hooks.on_step = [&](int rank, std::uint64_t step, double loss) {
    if (rank == 0) line.show(progress_text(preset, {.step = step + 1, .steps = options.steps, .loss = loss}));
  };
  hooks.on_change = [&](const MembershipChange& change) {
    line.clear();
    if (world->comm().rank() == 0) print_change(change);
  };
  hooks.on_note = [&](const std::string& text) {
    line.clear();
    fmt::print(stderr, "member {}: {}\n", world->membership().ids[static_cast<std::size_t>(world->comm().rank())],
               text);
  };
  const auto batch = static_cast<std::uint64_t>(c.train.batch) * static_cast<std::uint64_t>(tcp.size);
  const ElasticRun run = train_elastic(*world, problem, options, batch, hooks);
  if (run.is_first)
    fmt::print("{}: loss {:.4f}, accuracy {:.1f}% after {} steps; epoch {}, members {}, lost {}; weights {}\n", preset,
               run.test_loss, 100 * run.test_accuracy, run.steps, run.epoch, list_of(run.members), list_of(run.lost),
               run.weights);
  return 0;
}

void add_recipe(CLI::App& sub, TrainCommand& c) {
  Recipe& r = c.train.recipe;
  sub.option_defaults()->group("How to train");
  sub.add_option("--optimiser", r.optimiser, "sgd, momentum or adam");
  sub.add_option("--lr", r.learning_rate, "learning rate; 0: tuned for dense");
  sub.add_option("--schedule", r.schedule, "of the learning rate: cosine or constant");
  sub.add_option("--momentum", r.momentum, "of optimiser momentum");
  sub.add_option("--beta2", r.beta2, "of adam");
  sub.add_option("--weight-decay", r.weight_decay, "coupled for sgd, decoupled for adam");
  sub.add_option("--clip", r.clip_norm, "bound of the gradient's norm; 0: none");
  sub.add_option("--warmup", r.warmup, "none, dense:SHARE or dgc:SHARE of the steps");
  sub.add_option("--adam", r.adam, "interval_aware (ours) or published");
  sub.add_flag("--published-momentum{false}", r.interval_momentum,
               "momentum of the sparse mean, step by step (default: interval-aware, ours)");
  sub.add_option("--sparsify", r.sparsify, "gradients, or updates: momentum before the selection");
  sub.add_flag("--factor-masking", r.factor_masking, "updates: clear momentum where it was sent");
  sub.add_flag("--look-ahead", r.look_ahead, "gradients at the weights minus own unsent updates");
  sub.add_option("--flush", c.flush, "1 applies unsent mass after the last step, 0 does not, -1: as recommended")
      ->check(CLI::Range(-1, 1));
  sub.add_option("--decay", c.decay, "of error feedback, per step");
  sub.add_option("--nan", c.nan_policy, "a gradient that is not finite: error, skip or local");
  sub.option_defaults()->group("Options");
}

void add_run(CLI::App& sub, TrainCommand& c) {
  TrainOptions& t = c.train;
  sub.add_option("--model", t.model, "hidden layers of the perceptron: mlp, or mlp:300,100");
  sub.add_option("--steps", t.steps, "steps of training");
  sub.add_option("--batch", t.batch, "samples per rank and step");
  sub.add_option("--ranks", c.ranks, "number of ranks; 0: 4, or all of MPI's");
  c.add_transport_to(sub);
  sub.add_flag("--elastic", c.elastic, "go on without ranks that fail, and let others join: oktopk run --keep-going");
  sub.add_option("--seed", t.seed, "of weights and samples");
  sub.add_option("-J,--json", c.json_file, "also write results and curves to this file");
  sub.add_option("--html", c.html_file, "write a page with plots to this file");
  TraceFile::add_option(sub, c.trace_file);
  FlightFiles::add_option(sub, c.flight_folder);
}

}  // namespace

void add_train(CLI::App& app, Action& action, const std::string& command) {
  auto* sub = app.add_subcommand("train", "trains a perceptron with any presets on the same generated samples");
  auto c = std::make_shared<TrainCommand>();
  c->method.presets = "dense,topka,oktopk,circulant";
  c->train.recipe.optimiser = "momentum";
  c->command = command;
  add_run(*sub, *c);
  add_recipe(*sub, *c);
  c->method.add_to(*sub);
  sub->footer(
      "Examples:\n"
      "  oktopk train --html report.html\n"
      "  oktopk train --model mlp:300,100 --preset dense,circulant\n"
      "  oktopk run --keep-going -n 4 -- oktopk train --elastic\n"
      "  mpirun -n 4 oktopk train --transport mpi --preset circulant --optimiser adam\n"
      "oktopk study learning compares recipes.");
  sub->callback([&action, c, sub] {
    if (c->elastic && sub->count("--transport") == 0) c->transport = "tcp";
    if (c->elastic && sub->count("--preset") == 0) c->method.presets = "circulant";
    action = [c] { return c->elastic ? run_elastic(*c) : run_train(*c); };
  });
}

}  // namespace oktopk
