// SPDX-License-Identifier: Apache-2.0
// `oktopk-lab study learning`: which choices keep sparse training up with dense. Every axis of a recipe is varied for
// SGD, momentum and Adam on one problem, over several seeds, and compared with dense at equal steps and at equal bytes
// (a dense run that may move no more bytes, with a schedule of its own). docs/learning.md reads the result.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <tuple>

#include "lab/study/study.h"
#include "oktopk/reduce/reducer_options.h"
#include "tools/statistics.h"
#include "tools/text.h"
#include "tools/train/trainer.h"

namespace oktopk {
namespace {

constexpr auto kOwner = ResidualKind::owner_memory;
constexpr auto kSender = ResidualKind::sender_keeps;

struct LearningRow {
  std::string name;
  TrainOptions options;
};

using Change = std::function<void(Recipe&)>;

void none(Recipe& /*recipe*/) {}
void updates(Recipe& r) { r.sparsify = "updates"; }
void look_ahead(Recipe& r) { r.look_ahead = true; }
void masking(Recipe& r) {
  updates(r);
  r.factor_masking = true;
}
void published(Recipe& r) {
  r.adam = "published";
  r.interval_momentum = false;
}
Change both(Change first, Change second) {
  return [=](Recipe& r) {
    first(r);
    second(r);
  };
}

// Collects the rows of one optimiser. The first one is dense.
class RowsOf {
 public:
  RowsOf(const std::string& optimiser, TrainOptions base) : base_(std::move(base)) {
    base_.recipe.optimiser = optimiser;
    base_.recipe.flush = recommends_flush(optimiser);
    base_.reducer.preset = "circulant";
    add("dense", ResidualKind::none, "none", none).reducer.preset = "dense";
  }

  TrainOptions& add(const std::string& name, ResidualKind rule, const std::string& warmup, const Change& change) {
    rows.push_back({name, base_});
    TrainOptions& options = rows.back().options;
    options.reducer.allreduce.residual = rule;
    options.recipe.start = warmup;
    change(options.recipe);
    return options;
  }
  // With a dense warm-up of 10%.
  void warm(const std::string& name, ResidualKind rule, const Change& change) {
    add(name + ", dense 10%", rule, "dense:0.1", change);
  }
  void warmups(const std::string& name) {
    const bool flushed = base_.recipe.flush;
    add(name + ", no warm-up", kOwner, "none", none);
    add(name + ", dense 2%", kOwner, "dense:0.02", none);
    warm(name, kOwner, none);
    add(name + ", DGC 10%", kOwner, "dgc:0.1", none);
    add(name + ", dense 10%" + (flushed ? ", no flush" : ", flush"), kOwner, "dense:0.1",
        [=](Recipe& r) { r.flush = !flushed; });
  }

  std::vector<LearningRow> rows;

 private:
  TrainOptions base_;
};

std::vector<LearningRow> recipe_rows(const std::string& optimiser, const TrainOptions& base) {
  RowsOf rows(optimiser, base);
  if (optimiser == "sgd") {
    rows.add("sender keeps, no warm-up", kSender, "none", none);
    rows.warm("sender keeps", kSender, none);
    rows.warmups("owner memory");
    rows.warm("owner memory, look-ahead", kOwner, look_ahead);
    return rows.rows;
  }
  if (optimiser == "adam") rows.add("published, sender keeps, no warm-up", kSender, "none", published);
  rows.warm("published, sender keeps", kSender, published);
  rows.warm("published, owner memory", kOwner, published);
  if (optimiser == "momentum") {
    rows.warm("published, owner memory, look-ahead", kOwner, both(published, look_ahead));
    rows.warm("updates, sender keeps", kSender, updates);
    rows.warm("updates, masking, sender keeps", kSender, masking);
    rows.warm("updates, masking, owner memory", kOwner, masking);
  } else {
    rows.warm("updates, sender keeps", kSender, updates);
    rows.warm("updates, owner memory", kOwner, updates);
    rows.warm("updates, owner memory, look-ahead", kOwner, both(updates, look_ahead));
  }
  rows.warm("interval-aware, sender keeps", kSender, none);
  rows.warmups("interval-aware, owner memory");
  return rows.rows;
}

// Dense runs by {optimiser, steps, seed}: many rows ask for the same.
using DenseLosses = std::map<std::tuple<std::string, std::uint64_t, std::uint64_t>, double>;

double dense_loss(Communicator& comm, const LearningProblem& problem, TrainOptions options, DenseLosses& known) {
  const auto key = std::tuple(options.recipe.optimiser, options.steps, options.seed);
  if (known.contains(key)) return known[key];
  options.reducer.preset = "dense";
  options.reducer.allreduce.residual = ResidualKind::none;
  options.recipe.sparsify = "gradients";
  options.recipe.factor_masking = false;
  options.recipe.look_ahead = false;
  return known[key] = train(comm, problem, options).test_loss;
}

nlohmann::json run_row(Communicator& comm, const LearningProblem& problem, const LearningRow& row, int seeds,
                       DenseLosses& known) {
  Dense losses, accuracies, gaps, equal_losses;
  double all_bytes = 0, equal_steps = 0;
  for (int s = 0; s < seeds; ++s) {
    TrainOptions options = row.options;
    options.seed += static_cast<std::uint64_t>(s);
    const TrainingRun run = train(comm, problem, options);
    losses.push_back(run.test_loss);
    accuracies.push_back(run.test_accuracy);
    gaps.push_back(run.test_loss / dense_loss(comm, problem, options, known) - 1);
    const double bytes = run.wire_bytes * static_cast<double>(run.steps);
    all_bytes += bytes / seeds;
    if (run.dense_bytes > 0)
      options.steps = std::clamp<std::uint64_t>(static_cast<std::uint64_t>(bytes / run.dense_bytes), 1, options.steps);
    equal_steps = static_cast<double>(options.steps);
    equal_losses.push_back(dense_loss(comm, problem, options, known));
  }
  const ReducerOptions& reducer = row.options.reducer;
  return {{"name", row.name},
          {"recipe", to_json(row.options.recipe)},
          {"preset", reducer.preset},
          {"residual", to_string(reducer.allreduce.residual)},
          {"density", reducer.density.value_or(kDefaultDensity)},
          {"losses", losses},
          {"accuracies", accuracies},
          {"gaps", gaps},
          {"bytes", all_bytes},
          {"equal_bytes_steps", equal_steps},
          {"equal_bytes_loss", mean_of(equal_losses)}};
}

std::vector<Column> learning_columns() {
  using nlohmann::json;
  const auto gap = [](const json& row) {
    const Dense gaps = row["gaps"];
    return row["preset"] == "dense" ? ""
                                    : fmt::format("{:+.2f}% ± {:.2f}", 100 * mean_of(gaps), 100 * deviation_of(gaps));
  };
  const auto percent = [](const json& shares) { return fmt::format("{:.2f}%", 100 * mean_of(shares.get<Dense>())); };
  const auto equal_bytes = [](const json& row) {
    return fmt::format("{:.4f} ({:.0f} steps)", row["equal_bytes_loss"].get<double>(),
                       row["equal_bytes_steps"].get<double>());
  };
  return {{"recipe", "name"},
          {"test loss", "losses", mean(4)},
          {"vs dense", "", gap},
          {"accuracy", "accuracies", percent},
          {"bytes / rank", "bytes", format_bytes},
          {"dense with these bytes", "", equal_bytes}};
}

Bars gap_bars(const std::string& optimiser, const nlohmann::json& rows) {
  Bars bars{.title = optimiser + ": test loss against dense, same steps",
            .y_label = "percent above dense",
            .sets = {{.name = optimiser}},
            .references = {0},
            .reference_label = "dense"};
  for (const auto& row : rows) {
    if (row["preset"] == "dense") continue;
    bars.groups.push_back(row["name"]);
    bars.sets[0].values.push_back(100 * mean_of(row["gaps"].get<Dense>()));
  }
  return bars;
}

}  // namespace

Findings study_learning(const StudyTask& task) {
  const SmallTraining training = small_training(task.n, {.seed = 1});
  TrainOptions base;
  base.model = training.model;
  base.steps = static_cast<std::uint64_t>(task.steps);
  base.seed = task.seed;
  base.reducer.density = task.densities.front();
  Findings out;
  const int P = task.ranks.front();
  out.head = {fmt::format("{}, {} ranks, {} steps x density {} = {:.0f} turns, {} seeds", training.model, P, task.steps,
                          *base.reducer.density, task.steps * *base.reducer.density, task.seeds)};
  for (const std::string& optimiser : task.data) {
    const auto rows = on_ranks(task, P, [&](Communicator& comm) {
      DenseLosses known;
      nlohmann::json done = nlohmann::json::array();
      for (const LearningRow& row : recipe_rows(optimiser, base)) {
        done.push_back(run_row(comm, training.problem, row, task.seeds, known));
        if (comm.rank() == 0) fmt::print(stderr, "{}, {}: done\n", optimiser, row.name);
      }
      return done;
    });
    out.tables.push_back(make_table(optimiser, learning_columns(), rows, "name"));
    out.plots.push_back(gap_bars(optimiser, rows));
    out.rows.insert(out.rows.end(), rows.begin(), rows.end());
  }
  out.notes = {
      "vs dense: the test loss divided by that of dense with the same seed, minus one; mean and standard deviation "
      "over "
      "the seeds.",
      "dense with these bytes: the loss of a dense run that moves as many bytes, in as many steps as that allows."};
  return out;
}

}  // namespace oktopk
