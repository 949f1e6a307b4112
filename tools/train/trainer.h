// SPDX-License-Identifier: Apache-2.0
// One training run: a network, data-parallel over the ranks of a communicator, synchronised by any preset. All ranks
// start from the same weights and hold bitwise the same ones after every step. Samples depend on (seed, step) only, so
// runs with other presets see the same ones.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "oktopk/comm/communicator.h"
#include "oktopk/reduce/reducer.h"
#include "tools/train/network.h"
#include "tools/train/problem.h"
#include "tools/train/recipe.h"

namespace oktopk {

struct TrainOptions {
  ReducerOptions reducer;  // its warm-up is set from the recipe
  int group = 1;           // of NodeOptions; 1: no nodes
  Recipe recipe;
  std::string model = "mlp";
  std::uint64_t steps = 4000;
  int batch = 16;  // samples per rank and step
  std::uint64_t seed = 1;
  int points = 200;      // of the curves
  int evaluations = 20;  // of the test set on the way
  std::string checkpoint_dir;
  std::uint64_t checkpoint_every = 0;  // steps; 0: never
  std::string resume_dir;              // start from this checkpoint, of any number of ranks
  std::uint64_t stop_after = 0;        // end early after this step, as if interrupted; 0: never
};

// One value per recorded step. loss: of training, mean since the last record.
struct Curves {
  std::vector<double> step, loss, bytes, selected, unsent;
  std::vector<double> test_step, test_loss, test_accuracy, test_bytes;
};

// Seconds per step, means over the ranks; run: the whole run.
struct TrainingTimes {
  double select = 0, exchange = 0, apply = 0, compute = 0, run = 0;
};

// Complete on rank 0 only.
struct TrainingRun {
  std::string preset;
  Curves curves;
  double test_loss = 0, test_accuracy = 0;  // at the end
  double train_loss = 0;                    // mean of the last tenth of the steps
  double parameters = 0;
  double k = 0;
  double wire_bytes = 0, messages = 0;  // per rank and step, the busiest rank's
  double dense_bytes = 0;               // that dense would move: 8n(P-1)/P
  double compression = 0;               // dense_bytes / wire_bytes
  TrainingTimes seconds;
  std::uint64_t steps = 0;
  std::string weights;      // their hash
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
  double stretch_loss = 0;  // since the last record
  double stretch = 0;       // steps since then
  Curves curves;
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Curves, step, loss, bytes, selected, unsent, test_step, test_loss, test_accuracy,
                                   test_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TrainingTimes, select, exchange, apply, compute, run)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TrainingRun, preset, curves, test_loss, test_accuracy, train_loss, parameters, k,
                                   wire_bytes, messages, compression, seconds, steps, weights, ranks_agree)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TrainState, step, bytes, messages, stretch_loss, stretch, curves)

// A checkpoint is one file per preset, PRESET.state, with the states of all ranks. Rank 0 writes it beside its name and
// then renames it, so that a run that is killed leaves the last complete one. All ranks read it.

// Collective. UsageError on every rank when the file cannot be written.
void save_checkpoint(Communicator& comm, const TrainOptions& options, const TrainState& state,
                     std::span<const float> weights, const Optimiser& optimiser);

// Collective: whether there is something to resume for a preset.
bool finds_checkpoint(Communicator& comm, const std::string& dir, const std::string& preset);

// Collective. On as many ranks as wrote it: continues bitwise. On another number: the unsent mass is shared out among
// the present ranks. UsageError on every rank, and nothing changed, when the file is missing, damaged or of another
// run.
void load_checkpoint(Communicator& comm, const TrainOptions& options, TrainState& state, std::span<float> weights,
                     Optimiser& optimiser);

}  // namespace oktopk
