// SPDX-License-Identifier: Apache-2.0
#include "tools/train/learning_study.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "tools/statistics.h"

namespace oktopk {
namespace {

// Collects the rows of one optimiser; every row starts from the plainest recipe.
class Rows {
 public:
  Rows(const std::string& optimiser, const TrainOptions& base) : base_(base) {
    base_.recipe.optimiser = optimiser;
    base_.recipe.sparsify = Sparsify::gradients;
    base_.recipe.factor_masking = false;
    base_.recipe.look_ahead = false;
    base_.recipe.warmup = "none";
    base_.recipe.flush = recommended_recipe(optimiser).flush;
    base_.recipe.adam = AdamMode::interval_aware;
    base_.recipe.interval_momentum = true;
    base_.reducer.preset = "circulant";
  }

  StudyRow& add(const std::string& name, ResidualKind rule, const std::function<void(Recipe&)>& change = {}) {
    StudyRow row{.name = name, .recipe = base_.recipe, .reducer = base_.reducer};
    row.reducer.allreduce.residual = rule;
    if (change) change(row.recipe);
    rows_.push_back(row);
    return rows_.back();
  }

  const Recipe& base() const { return base_.recipe; }
  std::vector<StudyRow> take() { return std::move(rows_); }

 private:
  TrainOptions base_;
  std::vector<StudyRow> rows_;
};

constexpr auto kOwner = ResidualKind::owner_memory;
constexpr auto kSender = ResidualKind::sender_keeps;

using Change = std::function<void(Recipe&)>;

Change warm(const std::string& warmup, const Change& more = {}) {
  return [=](Recipe& r) {
    r.warmup = warmup;
    if (more) more(r);
  };
}
Change warm(const Change& more = {}) { return warm("dense:0.1", more); }

void updates(Recipe& r) { r.sparsify = Sparsify::updates; }
void look_ahead(Recipe& r) { r.look_ahead = true; }
void masking(Recipe& r) {
  updates(r);
  r.factor_masking = true;
}
void published(Recipe& r) {
  r.adam = AdamMode::published;
  r.interval_momentum = false;
}
void interval_steps(Recipe& r) { r.adam = AdamMode::interval_steps; }

// Which warm-up, for what is best otherwise.
void add_warmups(Rows& rows, const std::string& name, ResidualKind rule, const Change& best) {
  const bool flushed = rows.base().flush;
  rows.add(name + ", no warm-up", rule, warm("none", best));
  rows.add(name + ", dense 2%", rule, warm("dense:0.02", best));
  rows.add(name + ", dense 10%", rule, warm("dense:0.1", best));
  rows.add(name + ", DGC 10%", rule, warm("dgc:0.1", best));
  rows.add(name + ", dense 10%" + (flushed ? ", no flush" : ", flush"), rule, warm([=](Recipe& r) {
             if (best) best(r);
             r.flush = !flushed;
           }));
}

void add_sgd_rows(Rows& rows) {
  rows.add("sender keeps, no warm-up", kSender);
  rows.add("sender keeps, dense 10%", kSender, warm());
  add_warmups(rows, "owner memory", kOwner, {});
  rows.add("owner memory, look-ahead, dense 10%", kOwner, warm(look_ahead));
}

void add_momentum_rows(Rows& rows) {
  rows.add("published, sender keeps, dense 10%", kSender, warm(published));
  rows.add("published, owner memory, dense 10%", kOwner, warm(published));
  rows.add("published, owner memory, look-ahead, dense 10%", kOwner, warm([](Recipe& r) {
             published(r);
             look_ahead(r);
           }));
  rows.add("updates, sender keeps, dense 10%", kSender, warm(updates));
  rows.add("updates, masking, sender keeps, dense 10%", kSender, warm(masking));
  rows.add("updates, masking, owner memory, dense 10%", kOwner, warm(masking));
  rows.add("interval-aware, sender keeps, dense 10%", kSender, warm());
  add_warmups(rows, "interval-aware, owner memory", kOwner, {});
}

void add_adam_rows(Rows& rows) {
  rows.add("published, sender keeps, no warm-up", kSender, published);
  rows.add("published, sender keeps, dense 10%", kSender, warm(published));
  rows.add("published, owner memory, dense 10%", kOwner, warm(published));
  rows.add("interval steps, owner memory, dense 10%", kOwner, warm(interval_steps));
  rows.add("updates, sender keeps, dense 10%", kSender, warm(updates));
  rows.add("updates, owner memory, dense 10%", kOwner, warm(updates));
  rows.add("updates, owner memory, look-ahead, dense 10%", kOwner, warm([](Recipe& r) {
             updates(r);
             look_ahead(r);
           }));
  rows.add("interval-aware, sender keeps, dense 10%", kSender, warm());
  add_warmups(rows, "interval-aware, owner memory", kOwner, {});
}

constexpr double kSharePerDensity = 8;  // what a fixed density sends on the generated problem

std::string percent(double density) { return fmt::format("{:g}%", 100 * density); }

StudyRow& add_density(Rows& rows, const std::string& name, double density) {
  StudyRow& row = rows.add(name, kOwner, warm("dense:0.02"));
  row.reducer.density = density;
  return row;
}

// Dense runs by {optimiser, steps, seed}: many rows ask for the same.
class DenseRuns {
 public:
  DenseRuns(Communicator& comm, const LearningProblem& problem) : comm_(comm), problem_(problem) {}

  double loss(TrainOptions options) {
    options.reducer.preset = "dense";
    options.reducer.allreduce.residual = ResidualKind::none;
    options.reducer.allreduce.codec = {};
    options.reducer.adaptive = {};
    options.recipe.sparsify = Sparsify::gradients;
    options.recipe.factor_masking = false;
    options.recipe.look_ahead = false;
    const auto key = std::tuple(options.recipe.optimiser, options.steps, options.seed);
    if (!losses_.contains(key)) losses_[key] = train(comm_, problem_, options).test.loss;
    return losses_[key];
  }

 private:
  Communicator& comm_;
  const LearningProblem& problem_;
  std::map<std::tuple<std::string, std::uint64_t, std::uint64_t>, double> losses_;
};

}  // namespace

std::vector<StudyRow> study_rows(const std::string& optimiser, const TrainOptions& base) {
  Rows rows(optimiser, base);
  StudyRow& dense = rows.add("dense", ResidualKind::none);
  dense.reducer.preset = "dense";
  if (optimiser == "sgd") add_sgd_rows(rows);
  if (optimiser == "momentum") add_momentum_rows(rows);
  if (optimiser == "adam") add_adam_rows(rows);
  return rows.take();
}

std::vector<StudyRow> density_rows(const std::string& optimiser, const TrainOptions& base) {
  Rows rows(optimiser, base);
  rows.add("dense", ResidualKind::none).reducer.preset = "dense";
  for (const double density : {0.002, 0.005, 0.01, 0.02, 0.05}) {
    add_density(rows, "fixed " + percent(density), density);
    add_density(rows, "adaptive, budget " + percent(density), density).reducer.adaptive = {
        .target_share = kSharePerDensity * density, .budget = density};
  }
  for (const double first : {0.001, 0.1})
    add_density(rows, "adaptive, no budget, from " + percent(first), first).reducer.adaptive = {
        .target_share = kSharePerDensity * 0.01, .least = 0.001, .most = 0.1};
  return rows.take();
}

void run_study(Communicator& comm, const LearningProblem& problem, LearningStudy& study,
               const std::function<void(const StudyRow&)>& done) {
  DenseRuns dense(comm, problem);
  const double P = comm.size();
  for (StudyRow& row : study.rows) {
    TrainOptions options = study.base;
    options.recipe = row.recipe;
    options.reducer = row.reducer;
    std::vector<double> equal;
    for (int s = 0; s < study.seeds; ++s) {
      options.seed = study.base.seed + static_cast<std::uint64_t>(s);
      const TrainingRun run = train(comm, problem, options);
      const double reference = dense.loss(options);
      row.losses.push_back(run.test.loss);
      row.accuracies.push_back(run.test.accuracy);
      row.gaps.push_back(run.test.loss / reference - 1);
      const double bytes = run.wire * static_cast<double>(run.steps);
      row.bytes += bytes / study.seeds;
      const double step_bytes = 8 * run.parameters * (P - 1) / P;
      TrainOptions shorter = options;
      shorter.steps = std::clamp<std::uint64_t>(
          step_bytes > 0 ? static_cast<std::uint64_t>(bytes / step_bytes) : options.steps, 1, options.steps);
      row.equal_bytes_steps = static_cast<double>(shorter.steps);
      equal.push_back(dense.loss(shorter));
    }
    row.equal_bytes_loss = mean_of(equal);
    if (comm.rank() == 0 && done) done(row);
  }
}

}  // namespace oktopk
