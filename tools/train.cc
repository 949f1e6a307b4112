// SPDX-License-Identifier: Apache-2.0
// `oktopk train`: a real network, trained data-parallel with any presets on the same samples, and
// `--study`: the learning study. The front door: `make demo` runs it.
#include <fmt/format.h>

#include <memory>

#include "oktopk/base/error.h"
#include "tools/commands.h"
#include "tools/options.h"
#include "tools/text.h"
#include "tools/train/checkpoint.h"
#include "tools/train/idx.h"
#include "tools/train/learning_study.h"
#include "tools/train/progress.h"
#include "tools/train/teacher.h"
#include "tools/train/train_report.h"
#include "tools/worlds.h"

namespace oktopk {
namespace {

struct TrainCommand {
  MethodOptions method;
  TrainOptions train;
  std::string data;
  std::string transport = "threads";
  int ranks = 0;
  std::string optimiser = "momentum";
  std::string adam = "interval_aware";
  std::string sparsify = "gradients";
  std::string fusion = "whole";
  double alpha = 2e-5, beta = 3.2e-10;  // 25 Gbit/s Ethernet
  std::string nan_policy = "error";
  double decay = 1;
  AdaptiveDensityOptions adaptive;
  bool published_momentum = false;
  int flush = -1;  // -1: as recommended
  bool study = false, densities = false;
  int seeds = 3;
  bool optimiser_given = false;
  std::string json_file, html_file, trace_file;
  std::string command;
};

// search and optimal weigh messages against what the backward pass hides: for a pass of about a
// millisecond per 16 samples.
FusionOptions parse_fusion(const std::string& text, const TrainCommand& c) {
  FusionOptions options;
  options.machine = {c.alpha, c.beta, 0};
  options.backward_seconds = 1e-3 * c.train.batch / 16;
  const std::size_t colon = text.find(':');
  options.policy = find_fusion_policy(text.substr(0, colon));
  if (colon != std::string::npos) options.values = parse_count(text.substr(colon + 1));
  return options;
}

void settle_options(TrainCommand& c) {
  Recipe& r = c.train.recipe;
  const Recipe best = recommended_recipe(c.optimiser);
  r.optimiser = c.optimiser;
  r.adam = find_adam_mode(c.adam);
  r.sparsify = find_sparsify(c.sparsify);
  r.interval_momentum = !c.published_momentum;
  r.flush = c.flush < 0 ? best.flush : c.flush == 1;
  c.train.fusion = parse_fusion(c.fusion, c);
  check(r);
  describe(c.adaptive);  // refuses unfit ones before anything runs
  require(c.study || !c.densities, "--densities is a kind of --study");
}

TrainOptions options_for(const TrainCommand& c, const std::string& preset) {
  TrainOptions options = c.train;
  options.reducer = c.method.reducer(preset);
  options.group = c.method.ranks_per_node();
  options.reducer.decay = static_cast<float>(c.decay);
  options.reducer.nan_policy = find_nan_policy(c.nan_policy);
  // Beside other presets dense is what they are compared with.
  if (preset != "dense" || c.method.names().size() == 1) options.reducer.adaptive = c.adaptive;
  return options;
}

LearningProblem load_problem(const TrainCommand& c) {
  if (!c.data.empty()) return load_mnist(c.data);
  return make_teacher({.seed = 1});
}

int run_comparison(const TrainCommand& c, Worlds& worlds, int P, const LearningProblem& problem) {
  TraceFile trace(c.trace_file, worlds);
  const auto presets = c.method.names();
  Comparison comparison{.problem = problem.name,
                        .floor = problem.floor,
                        .transport = c.transport,
                        .command = c.command,
                        .P = P,
                        .options = options_for(c, presets.front()),
                        .adaptive = c.adaptive};
  worlds.run(P, [&](Station& station) {
    const bool prints = station.comm.rank() == 0;
    bool resumes = false;  // unless there is nothing at all, which is an error
    for (const std::string& preset : presets)
      resumes = resumes || (!c.train.resume_dir.empty() && finds_checkpoint(station.comm, c.train.resume_dir, preset));
    for (const std::string& preset : presets) {
      std::unique_ptr<ProgressBar> bar;
      if (prints) bar = std::make_unique<ProgressBar>(preset);
      TrainOptions options = options_for(c, preset);
      options.reducer.trace = trace.trace();
      // A run that was killed may not have come to the later presets.
      if (resumes && !finds_checkpoint(station.comm, options.resume_dir, preset)) options.resume_dir.clear();
      const TrainingRun run = train(station.comm, problem, options, [&](const Progress& p) { bar->show(p); });
      if (prints) comparison.runs.push_back(run);
    }
  });
  trace.write(worlds, P);
  if (!worlds.is_root()) return 0;
  print_table(comparison);
  write_json(c.json_file, to_json(comparison));
  if (!c.html_file.empty()) {
    write_page(c.html_file, make_page(comparison));
    fmt::print("# report: {}\n", c.html_file);
  }
  for (const TrainingRun& run : comparison.runs)
    if (!run.ranks_agree) return 1;
  return 0;
}

int run_learning_study(const TrainCommand& c, Worlds& worlds, int P, const LearningProblem& problem) {
  require(c.train.checkpoint_dir.empty() && c.train.resume_dir.empty() && c.train.stop_after == 0,
          "--study runs from start to end: it takes no --checkpoint, --resume or --stop-after");
  require(c.trace_file.empty(), "--study runs too many steps for a --trace");
  require(c.adaptive.target_share == 0, "--study sets the densities: it takes no --adaptive-share");
  require(c.seeds >= 1, "--seeds ", c.seeds, ": at least one is needed");
  LearningStudy study{.problem = problem.name,
                      .command = c.command,
                      .floor = problem.floor,
                      .P = P,
                      .seeds = c.seeds,
                      .base = options_for(c, "circulant")};
  for (const std::string optimiser : {"sgd", "momentum", "adam"}) {
    if (c.optimiser_given && c.optimiser != optimiser) continue;
    for (StudyRow& row : c.densities ? density_rows(optimiser, study.base) : study_rows(optimiser, study.base))
      study.rows.push_back(row);
  }
  if (worlds.is_root()) {
    const double turns = static_cast<double>(c.train.steps) * c.method.density;
    fmt::print("# {}, {}, {} ranks, {} steps x density {} = {:.0f} turns, {} seeds\n{}\n", problem.name, c.train.model,
               P, c.train.steps, c.method.density, turns, c.seeds, study_head());
    std::fflush(stdout);
  }
  worlds.run(P, [&](Station& station) {
    LearningStudy mine = study;
    run_study(station.comm, problem, mine, [](const StudyRow& row) {
      fmt::print("{}\n", study_line(row));
      std::fflush(stdout);
    });
    if (station.comm.rank() == 0) study.rows = mine.rows;
  });
  if (!worlds.is_root()) return 0;
  write_json(c.json_file, to_json(study));
  if (!c.html_file.empty()) {
    write_page(c.html_file, make_page(study));
    fmt::print("# report: {}\n", c.html_file);
  }
  return 0;
}

int run_train(TrainCommand& c) {
  settle_options(c);
  Worlds worlds(c.transport);
  const int P = c.ranks > 0 ? c.ranks : worlds.default_size();
  require(c.ranks >= 0, "--ranks ", c.ranks, ": it must be positive");
  c.method.check({P});
  if (worlds.is_root()) {
    check_writable(c.json_file);
    check_writable(c.html_file);
  }
  const LearningProblem problem = load_problem(c);
  return c.study ? run_learning_study(c, worlds, P, problem) : run_comparison(c, worlds, P, problem);
}

// Options of one group of the help.
struct Group {
  CLI::App& sub;
  const char* name;

  template <class T>
  CLI::Option* add(const std::string& option, T& value, const std::string& text) {
    return sub.add_option(option, value, text)->capture_default_str()->group(name);
  }
};

void add_recipe(CLI::App& sub, TrainCommand& c) {
  Recipe& r = c.train.recipe;
  Group group{sub, "How to train"};
  group.add("--optimiser", c.optimiser, "sgd, momentum or adam");
  sub.add_option("--lr", r.learning_rate, "learning rate (default: tuned for dense)")->group(group.name);
  group.add("--schedule", r.schedule, "of the learning rate: cosine or constant");
  group.add("--momentum", r.momentum, "of optimiser momentum");
  group.add("--beta2", r.beta2, "of adam");
  group.add("--weight-decay", r.weight_decay, "coupled for sgd, decoupled for adam");
  group.add("--clip", r.clip_norm, "bound of the gradient's norm; 0: none");
  group.add("--warmup", r.warmup, "none, dense:SHARE or dgc:SHARE of the steps");
  group.add("--adam", c.adam, "interval_aware (ours), interval_steps or published");
  sub.add_flag("--published-momentum", c.published_momentum,
               "momentum of the sparse mean, step by step (default: interval-aware, ours)")
      ->group(group.name);
  group.add("--sparsify", c.sparsify, "gradients, or updates: momentum before the selection");
  sub.add_flag("--factor-masking", r.factor_masking, "updates: clear momentum where it was sent")->group(group.name);
  sub.add_flag("--look-ahead", r.look_ahead, "gradients at the weights minus own unsent updates")->group(group.name);
  sub.add_option("--flush", c.flush, "1 applies what is unsent after the last step, 0 does not (default: recommended)")
      ->check(CLI::Range(0, 1))
      ->group(group.name);
  group.add("--decay", c.decay, "of error feedback, per step");
  group.add("--nan", c.nan_policy, "a gradient that is not finite: error, skip or local");
  group.add("--fusion", c.fusion, "whole, tensor, size:VALUES, search or optimal; all but whole overlap with backward");
  group.add("--alpha", c.alpha, "fusion search and optimal: seconds per message");
  group.add("--beta", c.beta, "fusion search and optimal: seconds per byte");
}

void add_adaptive(CLI::App& sub, AdaptiveDensityOptions& a) {
  Group group{sub, "Adaptive density (docs/adaptive_density.md)"};
  group.add("--adaptive-share", a.target_share,
            "share of the accumulators' squared norm to send in a step; 0: the density is fixed");
  group.add("--adaptive-budget", a.budget, "bound of the mean density; 0: none");
  group.add("--adaptive-least", a.least, "smallest density; 0: a tenth of --density");
  group.add("--adaptive-most", a.most, "largest density; 0: ten times --density");
  group.add("--adaptive-interval", a.interval, "sparse steps between two looks at the share");
}

void add_run(CLI::App& sub, TrainCommand& c) {
  TrainOptions& t = c.train;
  sub.add_option("--data", c.data, "folder with MNIST's idx files, plain or gzip (default: a generated problem)");
  sub.add_option("--model", t.model, "mlp, mlp:300,100, conv or conv:16,32")->capture_default_str();
  sub.add_option("--steps", t.steps, "steps of training")->capture_default_str();
  sub.add_option("--batch", t.batch, "samples per rank and step")->capture_default_str();
  sub.add_option("--ranks", c.ranks, "number of ranks (default: 4, or all of MPI's)");
  sub.add_option("--transport", c.transport, "threads or mpi")->capture_default_str();
  sub.add_option("--seed", t.seed, "of weights and samples")->capture_default_str();
  sub.add_flag("--study", c.study, "vary each choice of the recipe, for sgd, momentum and adam (or the one given)");
  sub.add_flag("--densities", c.densities, "with --study: vary the density, fixed and adaptive, not the recipe");
  sub.add_option("--seeds", c.seeds, "of the study")->capture_default_str();
  sub.add_option("-J,--json", c.json_file, "also write results and curves to this file");
  sub.add_option("--html", c.html_file, "write a page with plots to this file");
  TraceFile::add_option(sub, c.trace_file);
  sub.add_option("--checkpoint", t.checkpoint_dir, "write states into this folder");
  sub.add_option("--checkpoint-every", t.checkpoint_every, "steps between two checkpoints")->capture_default_str();
  sub.add_option("--resume", t.resume_dir, "continue from the states in this folder");
  sub.add_option("--stop-after", t.stop_after, "end after this step, as if interrupted");
}

}  // namespace

void add_train(CLI::App& app, Action& action, const std::string& command) {
  auto* sub =
      app.add_subcommand("train", "trains a network with any presets on the same samples; --study compares recipes");
  auto c = std::make_shared<TrainCommand>();
  c->method.presets = "dense,topka,oktopk,circulant";
  c->command = command;
  add_run(*sub, *c);
  add_recipe(*sub, *c);
  add_adaptive(*sub, c->adaptive);
  c->method.add_to(*sub);
  sub->footer(
      "Examples:\n"
      "  oktopk train --html report.html\n"
      "  oktopk train --data ~/mnist --model mlp:300,100 --preset dense,circulant\n"
      "  mpirun -n 4 oktopk train --transport mpi --preset circulant --optimiser adam\n"
      "  oktopk train --study --steps 4000 --html study.html");
  sub->callback([&action, sub, c] {
    c->optimiser_given = sub->count("--optimiser") > 0;
    action = [c] { return run_train(*c); };
  });
}

}  // namespace oktopk
