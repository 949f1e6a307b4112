// SPDX-License-Identifier: Apache-2.0
#include "tools/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/decorators.h"
#include "oktopk/laws/subject.h"
#include "oktopk/reduce/density.h"
#include "oktopk/reduce/reducer_options.h"
#include "tools/statistics.h"

namespace oktopk {
namespace {

void check(const TrainOptions& o) {
  check(o.recipe);
  require(o.steps >= 1, "steps = ", o.steps, ", but at least one is needed");
  require(o.batch >= 1, "batch = ", o.batch, ", but it must be at least 1");
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
        parse_start(options.recipe.start, options.steps, options.reducer.density.value_or(kDefaultDensity));
    sync_ = make_synchroniser(counting_, n_, options_.reducer, options_.group);
    optimiser_ = make_optimiser(*sync_, options.recipe);
    network_.initialise(weights_, options.seed);
  }

  TrainingRun run(const Observer& observe);

 private:
  double gradient_and_step();
  void record(double loss, std::size_t selected, const Observer& observe);
  void evaluate();
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
  std::unique_ptr<Optimiser> optimiser_;
  std::vector<std::uint32_t> samples_;
  Batch batch_;
  Workspace work_;
  std::uint64_t step_ = 0;
  Curves curves_;
  double stretch_loss_ = 0, stretch_ = 0;  // since the last record: sum of the losses, steps
  std::size_t selected_ = 0;
  double made_ = 0;      // steps of this process
  TrainingTimes times_;  // of this rank, all steps
  Timer whole_;
};

double Trainer::gradient_and_step() {
  PhaseTimer timer(options_.reducer.trace.on_rank(comm_.rank()), "train");
  const auto point = optimiser_->point(weights_);
  const auto mine = static_cast<std::uint64_t>(options_.batch);
  draw_samples(problem_.train.size(), options_.seed, step_, mine * static_cast<std::uint64_t>(comm_.rank()), mine,
               samples_);
  take_batch(problem_.train, samples_, batch_);
  const double loss = network_.gradient(point, batch_, gradient_);
  times_.compute += timer.lap("compute");
  const Update update = optimiser_->step(weights_, gradient_);
  const double seconds = timer.lap("optimiser");
  const StepTimes times = sync_->times();
  times_.select += times.check + times.select;
  times_.exchange += times.exchange;
  times_.apply += std::max(0.0, seconds - times.check - times.select - times.exchange);
  selected_ = update.size();
  return loss;
}

void Trainer::record(double loss, std::size_t selected, const Observer& observe) {
  stretch_loss_ += loss;
  stretch_ += 1;
  const auto points = static_cast<std::uint64_t>(std::max(1, options_.points));
  const bool due = step_ * points / options_.steps != (step_ - 1) * points / options_.steps || step_ == options_.steps;
  if (!due) return;
  Curves& c = curves_;
  c.step.push_back(static_cast<double>(step_));
  c.loss.push_back(total(stretch_loss_ / stretch_) / comm_.size());
  c.bytes.push_back(static_cast<double>(counting_.traffic().duplex_bytes));
  c.selected.push_back(static_cast<double>(selected));
  const double norm = sync_->unsent_norm();
  c.unsent.push_back(std::sqrt(total(norm * norm)));
  stretch_loss_ = 0;
  stretch_ = 0;
  const auto evaluations = static_cast<std::uint64_t>(std::max(1, options_.evaluations));
  if (step_ * evaluations / options_.steps != static_cast<std::uint64_t>(c.test_step.size()) && step_ < options_.steps)
    evaluate();
  if (observe && comm_.rank() == 0)
    observe(
        {step_, options_.steps, c.loss.back(), c.test_accuracy.empty() ? 0 : c.test_accuracy.back(), c.bytes.back()});
}

// Rank 0 evaluates; the other ranks wait in the next exchange.
void Trainer::evaluate() {
  const Span span(options_.reducer.trace.on_rank(comm_.rank()), "evaluate", "train");
  Curves& c = curves_;
  Network::Score score;
  if (comm_.rank() == 0) score = network_.evaluate(weights_, problem_.test);
  c.test_step.push_back(static_cast<double>(step_));
  c.test_loss.push_back(score.loss);
  c.test_accuracy.push_back(score.accuracy);
  c.test_bytes.push_back(static_cast<double>(counting_.traffic().duplex_bytes));
}

TrainingRun Trainer::run(const Observer& observe) {
  while (step_ < options_.steps) {
    optimiser_->set_learning_rate(learning_rate_at(options_.recipe, step_, options_.steps));
    const double loss = gradient_and_step();
    ++step_;
    record(loss, selected_, observe);
  }
  if (options_.recipe.flush) optimiser_->flush(weights_);
  optimiser_->catch_up(weights_);
  return finish();
}

TrainingRun Trainer::finish() {
  const double seconds = whole_.lap();
  evaluate();
  const Curves& c = curves_;
  const auto steps = static_cast<double>(step_);
  const double P = comm_.size();
  TrainingRun run{.preset = options_.reducer.preset,
                  .curves = c,
                  .test_loss = c.test_loss.back(),
                  .test_accuracy = c.test_accuracy.back(),
                  .parameters = static_cast<double>(n_),
                  .steps = step_};
  const std::size_t last = std::max<std::size_t>(1, c.loss.size() / 10);
  if (!c.loss.empty()) run.train_loss = mean_of(std::span(c.loss).last(last));
  run.k = static_cast<double>(entries_per_step(n_, options_.reducer));
  const Traffic& traffic = counting_.traffic();
  run.wire_bytes = largest(static_cast<double>(traffic.duplex_bytes)) / steps;
  run.messages = largest(static_cast<double>(traffic.duplex_messages)) / steps;
  run.dense_bytes = 8.0 * n_ * (P - 1) / P;
  run.compression = run.wire_bytes > 0 ? run.dense_bytes / run.wire_bytes : 0;
  for (double TrainingTimes::*part :
       {&TrainingTimes::select, &TrainingTimes::exchange, &TrainingTimes::apply, &TrainingTimes::compute})
    run.seconds.*part = total(times_.*part) / P / steps;
  run.seconds.run = seconds;
  const std::uint64_t hash = hash_bytes(std::as_bytes(std::span(weights_)));
  run.weights = fmt::format("{:016x}", hash);
  run.ranks_agree =
      allreduce_small(comm_, hash, Reduction::max, work_) == allreduce_small(comm_, hash, Reduction::min, work_);
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
