// SPDX-License-Identifier: Apache-2.0
// `oktopk train`: a perceptron, trained data-parallel with any presets on the same samples. `make demo` runs it.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "oktopk/allreduce/presets.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/elastic_world.h"
#include "oktopk/reduce/reducer_options.h"
#include "tools/commands.h"
#include "tools/page.h"
#include "tools/text.h"
#include "tools/train/elastic_trainer.h"
#include "tools/worlds.h"

namespace oktopk {
namespace {

// ---- Results of several runs on the same samples: as JSON, and from that as a table and as a page ----

using nlohmann::json;

// "+0.31%" against dense; empty for dense itself, or without it.
std::string gap(const json& result, const json& run) {
  for (const json& dense : result.at("runs"))
    if (dense.at("preset") == "dense" && run.at("preset") != "dense")
      return fmt::format("{:+.2f}%",
                         100 * (run.at("test_loss").get<double>() / dense.at("test_loss").get<double>() - 1));
  return "";
}

Table results_table(const json& result) {
  Table table{.head = {"preset", "test loss", "vs dense", "accuracy", "wire / rank / step", "less than dense",
                       "messages", "select", "exchange", "apply"}};
  for (const json& run : result.at("runs")) {
    const auto number = [&](const char* name) { return run.at(name).get<double>(); };
    const auto time = [&](const char* name) { return format_seconds(run.at("seconds").at(name)); };
    if (run.at("preset") == "circulant") table.strong.push_back({static_cast<int>(table.rows.size()), -1});
    table.rows.push_back({run.at("preset"), fmt::format("{:.4f}", number("test_loss")), gap(result, run),
                          fmt::format("{:.2f}%", 100 * number("test_accuracy")), format_bytes(number("wire_bytes")),
                          fmt::format("{:.1f}x", number("compression")), fmt::format("{:.1f}", number("messages")),
                          time("select"), time("exchange"), time("apply")});
  }
  return table;
}

// Circulant is first in the palette, the others follow in the order of the presets.
int colour_of(const std::string& preset) {
  const auto all = presets();
  const auto row = std::ranges::find(all, preset, &Preset::name);
  return static_cast<int>((row - all.begin() + 1) % std::ssize(all));
}

// `plot` with the curves x and y of all runs, and a dashed line at `level` if that is positive.
Plot with_curves(Plot plot, const json& result, const char* x, const char* y, std::pair<const char*, double> level) {
  Line line{.name = level.first, .dashed = true, .colour = kColours - 1};
  for (const json& run : result.at("runs")) {
    plot.series.push_back({.name = run.at("preset"),
                           .x = run.at("curves").at(x),
                           .y = run.at("curves").at(y),
                           .colour = colour_of(run.at("preset"))});
    const auto& xs = plot.series.back().x;
    if (xs.empty()) continue;
    if (line.x.empty()) line.x = {xs.front(), xs.back()};
    line.x = {std::min(line.x[0], xs.front()), std::max(line.x[1], xs.back())};
  }
  line.y = {level.second, level.second};
  if (level.second > 0) plot.series.push_back(line);
  return plot;
}

json plots_of(const json& result) {
  const std::pair<const char*, double> none = {"", 0}, best = {"best possible", result.at("best_possible_loss")};
  const std::pair<const char*, double> k = {"k",
                                            result.at("runs").empty() ? 0.0 : result["runs"][0]["k"].get<double>()};
  const auto over_steps = [](const char* title, const char* y_label) {
    return Plot{.title = title, .x_label = "step", .y_label = y_label};
  };
  Plot bytes{
      .title = "Test loss over bytes moved", .x_label = "bytes per rank", .y_label = "cross-entropy", .log_x = true};
  Plot selected = over_steps("Entries applied per step", "entries");
  selected.log_y = true;
  Plot unsent = with_curves(over_steps("Mass that is not applied yet", "norm of residuals and owner memory"), result,
                            "step", "unsent", none);
  std::erase_if(unsent.series, [](const Line& s) { return s.name == "dense"; });
  return {with_curves(over_steps("Test loss over steps", "cross-entropy"), result, "test_step", "test_loss", best),
          with_curves(bytes, result, "test_bytes", "test_loss", best),
          with_curves(over_steps("Training loss over steps", "cross-entropy"), result, "step", "loss", none),
          with_curves(over_steps("Test accuracy over steps", "share of samples"), result, "test_step", "test_accuracy",
                      none),
          with_curves(selected, result, "step", "selected", k),
          unsent};
}

// `world`: "4 ranks (threads)". `floor`: the best possible test loss.
json training_result(const TrainOptions& o, const std::string& world, double floor,
                     const std::vector<TrainingRun>& runs) {
  return {
      {"tool", "oktopk train"},
      {"problem", "teacher"},
      {"best_possible_loss", floor},
      {"set_up", fmt::format("teacher, {} with {:.0f} parameters, {}, {} samples per rank and step, {} steps, density "
                             "{}, {}, codec {}, seed {}",
                             o.model, runs.empty() ? 0 : runs.front().parameters, world, o.batch, o.steps,
                             o.reducer.density.value_or(kDefaultDensity), to_string(o.recipe),
                             to_string(o.reducer.allreduce.codec.value_or(Codec{})), o.seed)},
      {"model", o.model},
      {"steps", o.steps},
      {"batch_per_rank", o.batch},
      {"seed", o.seed},
      {"density", o.reducer.density.value_or(kDefaultDensity)},
      {"recipe", to_json(o.recipe)},
      {"runs", runs}};
}

void print_training(const json& result) {
  fmt::print("\n# {}\n{}", result["set_up"].get<std::string>(), to_text(results_table(result), "", ""));
  for (const json& run : result["runs"])
    fmt::print("# {:<10} weights {} after {} steps, {} on all ranks\n", run["preset"].get<std::string>(),
               run["weights"].get<std::string>(), run["steps"].get<std::uint64_t>(),
               run["ranks_agree"].get<bool>() ? "equal" : "NOT EQUAL");
}

json training_document(const json& result) {
  json numbers = json::array();
  for (const json& run : result.at("runs")) {
    if (run.at("preset") != "circulant") continue;
    const std::string loss = gap(result, run);
    numbers.push_back(
        {fmt::format("{:.0f}x", run.at("compression").get<double>()), "fewer bytes than dense, per rank and step"});
    if (!loss.empty()) numbers.push_back({loss, "test loss against dense, same steps"});
    numbers.push_back(
        {fmt::format("{:.2f}%", 100 * run.at("test_accuracy").get<double>()), "test accuracy with circulant"});
  }
  Table table = results_table(result);
  table.caption =
      "Wire: bytes that the busiest rank sends or receives, whichever is more, counted; warm-up steps included. Times "
      "are means per step and rank on this machine, where moving bytes costs next to nothing.";
  return {{"title", "oktopk: training with sparse gradients"},
          {"lead", result.at("set_up")},
          {"parts",
           {{{"numbers", numbers}},
            {{"text",
              "Every run starts from the same weights and sees the same samples. Each rank computes a gradient on its "
              "own samples; the runs differ only in what the ranks send to each other. After every step all ranks hold "
              "bitwise the same weights."}},
            {{"table", table}},
            {{"plots", plots_of(result)}},
            {{"heading", "Repeat it"}},
            {{"code", result.at("command")}}}}};
}

// ---- The command ----

struct TrainCommand : TransportOptions {
  MethodOptions method;
  TrainOptions train;
  int ranks = 0;
  bool elastic = false;
  bool use_recipe = false;
  std::string nan_policy = "error";
  int flush = -1;  // -1: as recommended
  std::string json_file, html_file, trace_file, flight_folder;
  std::string command;
};

std::string list_of(const std::vector<MemberId>& ids) {
  return ids.empty() ? "none" : fmt::format("{}", fmt::join(ids, ","));
}

void settle_options(TrainCommand& c) {
  Recipe& r = c.train.recipe;
  if (c.use_recipe) {
    const ReducerOptions recommended = recipe(c.train.steps);
    c.method.density = recommended.density.value_or(kDefaultDensity);
    c.method.codec = to_string(recommended.allreduce.codec.value_or(Codec{}));
    r.start = "recipe";
  }
  r.flush = c.flush < 0 ? recommends_flush(r.optimiser) : c.flush == 1;
  check(r);
  require(c.ranks >= 0, "--ranks ", c.ranks, ": it must not be negative");
}

TrainOptions options_for(const TrainCommand& c, const std::string& preset) {
  TrainOptions options = c.train;
  options.reducer = c.method.reducer(preset);
  if (c.use_recipe && preset == "dense")
    options.reducer.allreduce.codec = Codec{};  // what the others are compared with
  options.group = c.method.ranks_per_node();
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
  json result = training_result(options_for(c, c.method.names().back()), fmt::format("{} ranks ({})", P, c.transport),
                                problem.floor, runs);
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
    for (const std::string& note : world->take_notes()) {
      line.clear();
      fmt::print(stderr, "member {}: {}\n", world->membership().ids[static_cast<std::size_t>(rank)], note);
    }
  };
  hooks.on_change = [&](const MembershipChange& change) {
    line.clear();
    if (world->comm().rank() == 0) print_change(change);
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
  sub.add_option("--weight-decay", r.weight_decay, "coupled for sgd, decoupled for adam");
  sub.add_option("--clip", r.clip_norm, "bound of the gradient's norm; 0: none");
  sub.add_option("--start", r.start, "none, dense:SHARE or dgc:SHARE of the steps; recipe: as --recipe begins");
  add_former(sub, "--warmup", "--start", r.start);
  sub.add_option("--flush", c.flush, "1 applies unsent mass after the last step, 0 does not, -1: as recommended")
      ->check(CLI::Range(-1, 1));
  sub.add_option("--nan", c.nan_policy, "a gradient that is not finite: error, skip or local");
  for (const char* gone : {"--schedule", "--momentum", "--beta2", "--adam", "--published-momentum", "--sparsify",
                           "--factor-masking", "--look-ahead", "--decay"})
    add_refused(sub, gone,
                "recipes are compared by oktopk-lab study learning, and chosen by SgdOptions and AdamOptions");
  sub.option_defaults()->group("Options");
}

void add_run(CLI::App& sub, TrainCommand& c) {
  TrainOptions& t = c.train;
  sub.add_option("--model", t.model, "hidden layers of the perceptron: mlp, or mlp:300,100");
  sub.add_option("--steps", t.steps, "steps of training");
  sub.add_option("--batch", t.batch, "samples per rank and step");
  sub.add_option("--ranks", c.ranks, "number of ranks; 0: 4, or all processes");
  c.add_transport_to(sub);
  sub.add_flag("--elastic", c.elastic, "go on without ranks that fail, and let others join: oktopk run --keep-going");
  sub.add_option("--seed", t.seed, "of weights and samples");
  add_json_to(sub, c.json_file);
  sub.add_option("--html", c.html_file, "write a page with plots to this file");
  TraceFile::add_option(sub, c.trace_file);
  FlightFiles::add_option(sub, c.flight_folder);
}

}  // namespace

void add_train(CLI::App& app, Action& action, const std::string& command) {
  auto* sub = app.add_subcommand("train", "trains a perceptron with any presets on the same generated samples");
  sub->group("Try");
  auto c = std::make_shared<TrainCommand>();
  c->method.presets = "dense,topka,oktopk,circulant";
  c->train.recipe.optimiser = "momentum";
  c->command = command;
  add_run(*sub, *c);
  add_recipe(*sub, *c);
  c->method.add_problem_to(*sub);
  c->method.add_to(*sub);
  auto* recipe_flag =
      sub->add_flag("--recipe", c->use_recipe,
                    "the library's recipe for so many steps: 2.5% of the values in 4 bits, in the first "
                    "tenth of the steps 90% of them; dense stays as it is (docs/learning.md)");
  recipe_flag->group("How to train");
  for (const char* option : {"--density", "--codec", "--start"}) recipe_flag->excludes(option);
  sub->footer(
      "Examples:\n"
      "  oktopk train --html report.html\n"
      "  oktopk train --recipe --preset dense,circulant\n"
      "  oktopk train --model mlp:300,100 --preset dense,circulant\n"
      "  oktopk run --keep-going -n 4 -- oktopk train --elastic\n"
      "  mpirun -n 4 oktopk train --transport mpi --preset circulant --optimiser adam\n"
      "oktopk-lab study learning compares recipes.");
  sub->callback([&action, c, sub] {
    if (c->elastic && sub->count("--transport") == 0) c->transport = "tcp";
    if (c->elastic && sub->count("--preset") == 0) c->method.presets = "circulant";
    action = [c] { return c->elastic ? run_elastic(*c) : run_train(*c); };
  });
}

}  // namespace oktopk
