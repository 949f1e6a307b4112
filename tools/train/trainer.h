// SPDX-License-Identifier: Apache-2.0
// One training run: a network, data-parallel over the ranks of a communicator, synchronised by any preset. All ranks
// start from the same weights and hold bitwise the same ones after every step. Samples depend on (seed, step) only, so
// runs with other presets see the same ones.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "oktopk/comm/communicator.h"
#include "oktopk/reduce/fusion.h"
#include "oktopk/reduce/reducer.h"
#include "tools/train/network.h"
#include "tools/train/problem.h"
#include "tools/train/recipe.h"

namespace oktopk {

struct TrainOptions {
  ReducerOptions reducer;  // its warm-up is set from the recipe
  int group = 1;           // of NodeOptions; 1: no nodes
  FusionOptions fusion;
  Recipe recipe;
  std::string model = "mlp";
  std::uint64_t steps = 4000;
  int batch = 16;  // samples per rank and step
  std::uint64_t seed = 1;
  int points = 200;      // of the curves
  int evaluations = 20;  // of the test set on the way
  std::string checkpoint_dir;
  std::uint64_t checkpoint_every = 0;  // steps; 0: never
  std::string resume_dir;              // start from these states, of any number of ranks
  std::uint64_t stop_after = 0;        // end early after this step, as if interrupted; 0: never
};

// One value per recorded step. loss: of training, mean since the last record.
struct Curves {
  std::vector<double> step, loss, bytes, selected, unsent;
  std::vector<double> test_step, test_loss, test_accuracy, test_bytes;
};

// Complete on rank 0 only. Times are seconds per step, means over the ranks.
struct TrainingRun {
  std::string preset;
  Curves curves;
  Network::Score test;    // at the end
  double train_loss = 0;  // mean of the last tenth of the steps
  double parameters = 0;
  double k = 0;
  double wire = 0;        // bytes per rank and step, the busiest rank's
  double messages = 0;    // likewise
  double dense_wire = 0;  // bytes that dense would move: 8n(P-1)/P
  double select = 0, exchange = 0, apply = 0, compute = 0;
  double seconds = 0;  // of the whole run
  std::uint64_t steps = 0;
  std::uint64_t weights_hash = 0;
  bool ranks_agree = true;  // bitwise equal weights at the end
};

// Called on rank 0 as the run goes on.
struct Progress {
  std::uint64_t step = 0, steps = 0;
  double loss = 0;      // since the last record
  double accuracy = 0;  // of the last evaluation
  double bytes = 0;     // moved by this rank so far
};
using Observer = std::function<void(const Progress&)>;

// Collective. UsageError on every rank for bad options or states.
TrainingRun train(Communicator& comm, const LearningProblem& problem, const TrainOptions& options,
                  const Observer& observe = {});

// The progress of a run, besides weights and optimiser.
struct TrainState {
  std::uint64_t step = 0;
  double bytes = 0;  // moved by this rank before this process
  double messages = 0;
  Curves curves;
  double stretch_loss = 0;  // since the last record
  double stretch = 0;       // steps since then
};

// Checkpoints: one file per rank with the state, the weights and the optimiser. A file is written beside its name and
// then renamed, so that a run that is killed leaves the last complete one. A run that resumes takes the newest step
// that all ranks have.

// Collective. UsageError on every rank when one cannot write.
void save_checkpoint(Communicator& comm, const TrainOptions& options, const TrainState& state,
                     std::span<const float> weights, const Optimiser& optimiser);

// Collective: whether there is something to resume for a preset.
bool finds_checkpoint(Communicator& comm, const std::string& dir, const std::string& preset);

// Collective. As many files as ranks: continues bitwise. Another number of files: the unsent mass is shared out among
// the present ranks. UsageError on every rank, and nothing changed, when a file is missing, damaged or of another run.
void load_checkpoint(Communicator& comm, const TrainOptions& options, TrainState& state, std::span<float> weights,
                     Optimiser& optimiser);

}  // namespace oktopk
