// SPDX-License-Identifier: Apache-2.0
#include "tools/train/elastic_trainer.h"

#include <fmt/format.h>

#include <memory>
#include <span>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/base/state.h"
#include "oktopk/reduce/density.h"
#include "oktopk/reduce/reducer_options.h"
#include "tools/train/network.h"
#include "tools/train/recipe.h"

namespace oktopk {
namespace {

const TrainOptions& checked(const TrainOptions& o, std::uint64_t batch) {
  check(o.recipe);
  require(o.steps >= 1, "steps = ", o.steps, ", but at least one is needed");
  require(batch >= 1, "batch = ", batch, ", but it must be at least 1");
  require(o.group == 1, "elastic training: group = ", o.group, ", but nodes need ranks that stay: it must be 1");
  require(o.recipe.clip_norm == 0, "elastic training: clip = ", o.recipe.clip_norm,
          ", but the global norm is not repaired after a failure: it must be 0");
  require(o.recipe.sparsify == "gradients", "elastic training: sparsify = ", o.recipe.sparsify,
          ", but a member that joins can only get a state that all share: it must be gradients");
  return o;
}

class ElasticTrainer {
 public:
  ElasticTrainer(ElasticWorld& world, const LearningProblem& problem, const TrainOptions& options, std::uint64_t batch,
                 const ElasticTrainHooks& hooks)
      : world_(world),
        problem_(problem),
        options_(checked(options, batch)),
        batch_size_(batch),
        hooks_(hooks),
        network_(options.model, problem.features(), problem.classes),
        weights_(network_.parameters()),
        gradient_(network_.parameters()) {
    options_.reducer.warmup =
        parse_start(options.recipe.start, options.steps, options.reducer.density.value_or(kDefaultDensity));
    network_.initialise(weights_, options.seed);
    Bytes received;
    sync_ = make_sync(received);
    optimiser_ = make_optimiser(*sync_, options.recipe);
    if (!received.empty()) load(received);
  }

  ElasticRun run() {
    while (sync_->committed() < options_.steps) step();
    part();
    const Network::Score score = network_.evaluate(weights_, problem_.test);
    run_.test_loss = score.loss;
    run_.test_accuracy = score.accuracy;
    run_.steps = options_.steps;
    run_.weights = fmt::format("{:016x}", hash_bytes(std::as_bytes(std::span(weights_))));
    return run_;
  }

 private:
  std::unique_ptr<ElasticReducer> make_sync(Bytes& received);
  void load(const Bytes& received);
  void note(const MembershipChange& change);
  void step();
  void part();

  ElasticWorld& world_;
  const LearningProblem& problem_;
  TrainOptions options_;
  std::uint64_t batch_size_;  // of all members
  const ElasticTrainHooks& hooks_;
  Network network_;
  std::vector<float> weights_, gradient_;
  std::unique_ptr<ElasticReducer> sync_;
  std::unique_ptr<Optimiser> optimiser_;
  std::vector<std::uint32_t> samples_;
  Batch share_;
  ElasticRun run_;
};

// A member that joins gets the bytes inside the constructor, before there is an optimiser to load.
std::unique_ptr<ElasticReducer> ElasticTrainer::make_sync(Bytes& received) {
  ElasticHooks hooks;
  hooks.save_shared = [this] {
    return write_state([&](StateWriter& state) {
      state.put_all(std::span<const float>(weights_));
      state.put_bytes(optimiser_->save_shared());
    });
  };
  hooks.load_shared = [&received](std::span<const std::byte> bytes) { received.assign(bytes.begin(), bytes.end()); };
  hooks.on_change = [this](const MembershipChange& change) { note(change); };
  return std::make_unique<ElasticReducer>(world_, network_.parameters(), options_.reducer, std::move(hooks));
}

void ElasticTrainer::load(const Bytes& received) {
  StateReader state(received);
  std::vector<float> weights = state.take_all<float>();
  require(weights.size() == weights_.size(), "elastic training: the others have ", weights.size(),
          " weights, but model ", options_.model, " has ", weights_.size());
  weights_ = std::move(weights);
  optimiser_->load_shared(state.take_view());
}

void ElasticTrainer::note(const MembershipChange& change) {
  run_.lost.insert(run_.lost.end(), change.lost.begin(), change.lost.end());
  run_.joined.insert(run_.joined.end(), change.joined.begin(), change.joined.end());
  if (hooks_.on_change) hooks_.on_change(change);
}

void ElasticTrainer::step() {
  const std::uint64_t step = sync_->committed();
  optimiser_->set_learning_rate(learning_rate_at(options_.recipe, step, options_.steps));
  const int P = world_.comm().size();
  const BatchShare mine = share_of(batch_size_, world_.comm().rank(), P);
  double loss = 0;
  if (mine.count > 0) {
    draw_samples(problem_.train.size(), options_.seed, step, mine.first, mine.count, samples_);
    take_batch(problem_.train, samples_, share_);
    loss = network_.gradient(optimiser_->point(weights_), share_, gradient_);
    // The mean over the members is then the mean over the samples.
    const auto weight = static_cast<float>(static_cast<double>(mine.count) * P / static_cast<double>(batch_size_));
    for (float& g : gradient_) g *= weight;
  }
  optimiser_->step(weights_, mine.count > 0 ? std::span<const float>(gradient_) : std::span<const float>());
  if (hooks_.on_step) hooks_.on_step(world_.comm().rank(), step, loss);
}

// The flush is a step of its own, and the last one of all members: nobody leaves before all know that it is committed.
void ElasticTrainer::part() {
  sync_->leave_after_next();
  if (options_.recipe.flush)
    optimiser_->flush(weights_);
  else
    sync_->flush();
  run_.epoch = world_.membership().epoch;
  run_.members = world_.membership().ids;
  run_.is_first = world_.comm().rank() == 0;
  optimiser_->catch_up(weights_);
}

}  // namespace

BatchShare share_of(std::uint64_t batch, int rank, int P) {
  const auto at = [&](int r) { return batch * static_cast<std::uint64_t>(r) / static_cast<std::uint64_t>(P); };
  return {.first = at(rank), .count = at(rank + 1) - at(rank)};
}

ElasticRun train_elastic(ElasticWorld& world, const LearningProblem& problem, const TrainOptions& options,
                         std::uint64_t batch, const ElasticTrainHooks& hooks) {
  return ElasticTrainer(world, problem, options, batch, hooks).run();
}

}  // namespace oktopk
