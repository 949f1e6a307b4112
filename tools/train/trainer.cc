// SPDX-License-Identifier: Apache-2.0
#include "tools/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/base/timer.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/decorators.h"
#include "oktopk/reduce/bucketed_reducer.h"
#include "oktopk/reduce/reducer_options.h"
#include "tests/laws/subject.h"

namespace oktopk {
namespace {

void check(const TrainOptions& o) {
  check(o.recipe);
  require(o.steps >= 1, "steps = ", o.steps, ", but at least one is needed");
  require(o.batch >= 1, "batch = ", o.batch, ", but it must be at least 1");
  require(o.checkpoint_dir.empty() || o.checkpoint_every > 0 || o.stop_after > 0, "checkpoints in ", o.checkpoint_dir,
          ": after how many steps?");
  require(o.group == 1 || o.fusion.policy == FusionPolicy::whole, "fusion ", to_string(o.fusion.policy),
          " with nodes: nodes sum the whole gradient at once");
  require(o.checkpoint_every == 0 || !o.checkpoint_dir.empty(), "a checkpoint every ", o.checkpoint_every,
          " steps: in which folder?");
}

class Trainer {
 public:
  Trainer(Communicator& comm, const LearningProblem& problem, const TrainOptions& options)
      : comm_(comm),
        counting_(comm),
        problem_(problem),
        options_(options),
        network_(options.model, problem.features(), problem.classes),
        n_(network_.parameters()),
        weights_(n_),
        gradient_(n_) {
    options_.reducer.warmup =
        parse_warmup(options.recipe.warmup, options.steps, options.reducer.density.value_or(0.01));
    if (options.fusion.policy == FusionPolicy::whole) {
      sync_ = make_synchroniser(counting_, n_, options_.reducer, options_.group);
    } else {
      auto buckets = std::make_unique<BucketedReducer>(counting_, network_.tensors(), only_used(options_.reducer),
                                                       options_.fusion);
      buckets_ = buckets.get();
      sync_ = std::move(buckets);
    }
    optimiser_ = make_optimiser(*sync_, options.recipe);
    network_.initialise(weights_, options.seed);
  }

  TrainingRun run(const Observer& observe);

 private:
  bool overlaps() const;
  double gradient_and_step();
  void record(double loss, std::size_t selected, const Observer& observe);
  void evaluate();
  void save_if_due();
  TrainingRun finish();
  double total(double mine) { return allreduce_small(comm_, mine, Reduction::sum, work_); }
  double largest(double mine) { return allreduce_small(comm_, mine, Reduction::max, work_); }

  Communicator& comm_;
  CountingCommunicator counting_;
  const LearningProblem& problem_;
  TrainOptions options_;
  Network network_;
  Index n_;
  std::vector<float> weights_, gradient_;
  std::unique_ptr<Synchroniser> sync_;
  BucketedReducer* buckets_ = nullptr;  // sync_, when it is one
  std::unique_ptr<Optimiser> optimiser_;
  std::vector<std::uint32_t> samples_;
  Batch batch_;
  Workspace work_;
  TrainState state_;
  std::size_t selected_ = 0;
  double made_ = 0;  // steps of this process
  double compute_ = 0, select_ = 0, exchange_ = 0, apply_ = 0;
  Timer whole_;
};

// The backward pass and communication overlap unless the optimiser needs the whole gradient first.
bool Trainer::overlaps() const {
  const Recipe& r = options_.recipe;
  return buckets_ != nullptr && r.sparsify == Sparsify::gradients && r.clip_norm == 0 &&
         (r.weight_decay == 0 || r.optimiser == "adam");
}

double Trainer::gradient_and_step() {
  PhaseTimer timer(options_.reducer.trace.on_rank(comm_.rank()), "train");
  const auto point = optimiser_->point(weights_);
  draw_samples(problem_.train.size(), options_.seed, state_.step, comm_.rank(), options_.batch, samples_);
  take_batch(problem_.train, samples_, batch_);
  double loss = 0;
  Update update;
  if (overlaps()) {
    buckets_->begin(gradient_, optimiser_->scale());
    loss = network_.gradient(point, batch_, gradient_, [&](std::size_t t) { buckets_->ready(t); });
    compute_ += timer.lap("compute");
    update = buckets_->wait();
    optimiser_->apply(weights_, update);
  } else {
    loss = network_.gradient(point, batch_, gradient_);
    compute_ += timer.lap("compute");
    update = optimiser_->step(weights_, gradient_);
  }
  const double seconds = timer.lap("optimiser");
  const StepTimes times = sync_->times();
  select_ += times.check + times.select;
  exchange_ += times.exchange;
  apply_ += std::max(0.0, seconds - times.check - times.select - times.exchange);
  selected_ = update.size();
  return loss;
}

void Trainer::record(double loss, std::size_t selected, const Observer& observe) {
  state_.stretch_loss += loss;
  state_.stretch += 1;
  ++made_;
  const auto points = static_cast<std::uint64_t>(std::max(1, options_.points));
  const bool due = state_.step * points / options_.steps != (state_.step - 1) * points / options_.steps ||
                   state_.step == options_.steps;
  if (!due) return;
  Curves& c = state_.curves;
  c.step.push_back(static_cast<double>(state_.step));
  c.loss.push_back(total(state_.stretch_loss / state_.stretch) / comm_.size());
  c.bytes.push_back(state_.bytes + static_cast<double>(counting_.traffic().duplex_bytes));
  c.selected.push_back(static_cast<double>(selected));
  const double norm = sync_->unsent_norm();
  c.unsent.push_back(std::sqrt(total(norm * norm)));
  state_.stretch_loss = 0;
  state_.stretch = 0;
  const auto evaluations = static_cast<std::uint64_t>(std::max(1, options_.evaluations));
  if (state_.step * evaluations / options_.steps != static_cast<std::uint64_t>(c.test_step.size()) &&
      state_.step < options_.steps)
    evaluate();
  if (observe && comm_.rank() == 0)
    observe({state_.step, options_.steps, c.loss.back(), c.test_accuracy.empty() ? 0 : c.test_accuracy.back(),
             c.bytes.back()});
}

// Rank 0 evaluates; the other ranks wait in the next exchange.
void Trainer::evaluate() {
  const Span span(options_.reducer.trace.on_rank(comm_.rank()), "evaluate", "train");
  Curves& c = state_.curves;
  Network::Score score;
  if (comm_.rank() == 0) score = network_.evaluate(weights_, problem_.test);
  c.test_step.push_back(static_cast<double>(state_.step));
  c.test_loss.push_back(score.loss);
  c.test_accuracy.push_back(score.accuracy);
  c.test_bytes.push_back(state_.bytes + static_cast<double>(counting_.traffic().duplex_bytes));
}

void Trainer::save_if_due() {
  if (options_.checkpoint_dir.empty()) return;
  const std::uint64_t every = options_.checkpoint_every;
  const bool due = every > 0 && state_.step % every == 0;
  if (!due && state_.step != options_.stop_after) return;
  TrainState now = state_;
  now.bytes += static_cast<double>(counting_.traffic().duplex_bytes);
  now.messages += static_cast<double>(counting_.traffic().duplex_messages);
  save_checkpoint(comm_, options_, now, weights_, *optimiser_);
}

TrainingRun Trainer::run(const Observer& observe) {
  if (!options_.resume_dir.empty()) load_checkpoint(comm_, options_, state_, weights_, *optimiser_);
  while (state_.step < options_.steps) {
    optimiser_->set_learning_rate(learning_rate_at(options_.recipe, state_.step, options_.steps));
    const double loss = gradient_and_step();
    ++state_.step;
    record(loss, selected_, observe);
    save_if_due();
    if (state_.step == options_.stop_after) break;
  }
  if (state_.step == options_.steps) {
    if (options_.recipe.flush) optimiser_->flush(weights_);
    optimiser_->catch_up(weights_);
  }
  return finish();
}

TrainingRun Trainer::finish() {
  const double seconds = whole_.lap();
  evaluate();
  const Curves& c = state_.curves;
  const auto steps = static_cast<double>(state_.step);
  const double made = std::max(1.0, made_);
  const double P = comm_.size();
  TrainingRun run;
  run.preset = options_.reducer.preset;
  run.test = {c.test_loss.back(), c.test_accuracy.back()};
  const std::size_t last = std::max<std::size_t>(1, c.loss.size() / 10);
  if (!c.loss.empty())
    run.train_loss = std::accumulate(c.loss.end() - static_cast<std::ptrdiff_t>(last), c.loss.end(), 0.0) /
                     static_cast<double>(last);
  run.parameters = n_;
  run.k = static_cast<double>(entries_per_step(n_, options_.reducer));
  const Traffic& traffic = counting_.traffic();
  run.wire = largest(state_.bytes + static_cast<double>(traffic.duplex_bytes)) / steps;
  run.messages = largest(state_.messages + static_cast<double>(traffic.duplex_messages)) / steps;
  run.dense_wire = 8.0 * n_ * (P - 1) / P;
  run.select = total(select_) / P / made;
  run.exchange = total(exchange_) / P / made;
  run.apply = total(apply_) / P / made;
  run.compute = total(compute_) / P / made;
  run.seconds = seconds;
  run.steps = state_.step;
  run.weights_hash = hash_bytes(std::as_bytes(std::span(weights_)));
  run.ranks_agree = allreduce_small(comm_, run.weights_hash, Reduction::max, work_) ==
                    allreduce_small(comm_, run.weights_hash, Reduction::min, work_);
  run.curves = c;
  return run;
}

}  // namespace

TrainingRun train(Communicator& comm, const LearningProblem& problem, const TrainOptions& options,
                  const Observer& observe) {
  check(options);
  Span span(options.reducer.trace.on_rank(comm.rank()), options.reducer.preset, "train");
  span.arg("P", comm.size());
  return Trainer(comm, problem, options).run(observe);
}

}  // namespace oktopk
