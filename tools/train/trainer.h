// SPDX-License-Identifier: Apache-2.0
// One training run: a network, data-parallel over the ranks of a communicator, synchronised by any
// preset. All ranks start from the same weights and hold bitwise the same ones after every step.
// Samples depend on (seed, step) only, so runs with other presets see the same ones.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "oktopk/comm/communicator.h"
#include "oktopk/reduce/fusion.h"
#include "oktopk/reduce/reducer.h"
#include "tools/train/dataset.h"
#include "tools/train/network.h"
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
  // Checkpoints (checkpoint.h): every so many steps (0: never), and when stopped early.
  std::string checkpoint_dir;
  std::uint64_t checkpoint_every = 0;
  std::string resume_dir;        // start from these states, of any number of ranks
  std::uint64_t stop_after = 0;  // end early after this step, as if interrupted; 0: never
};

// The curves, one value per recorded step.
struct Curves {
  std::vector<double> step, loss, bytes, selected, unsent;  // loss: training, mean since the last
  std::vector<double> test_step, test_loss, test_accuracy, test_bytes;
};

// Complete on rank 0 only.
struct TrainingRun {
  std::string preset;
  Curves curves;
  Network::Score test;    // at the end
  double train_loss = 0;  // mean of the last tenth of the steps
  double parameters = 0;
  double k = 0;
  double wire = 0;                                          // bytes per rank and step, the busiest rank's
  double messages = 0;                                      // per rank and step
  double dense_wire = 0;                                    // what dense would move: 8n(P-1)/P
  double select = 0, exchange = 0, apply = 0, compute = 0;  // seconds per step, mean over ranks
  double seconds = 0;                                       // of the whole run
  std::uint64_t steps = 0;
  std::uint64_t weights_hash = 0;
  bool ranks_agree = true;  // bitwise equal weights at the end
};

// Called on rank 0 as the run goes on.
struct Progress {
  std::uint64_t step = 0, steps = 0;
  double loss = 0;      // of the last recorded stretch
  double accuracy = 0;  // of the last evaluation
  double bytes = 0;     // moved by this rank so far
};
using Observer = std::function<void(const Progress&)>;

// Collective. UsageError on every rank for bad options or states.
TrainingRun train(Communicator& comm, const LearningProblem& problem, const TrainOptions& options,
                  const Observer& observe = {});

}  // namespace oktopk
