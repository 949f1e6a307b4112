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

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Curves, step, loss, bytes, selected, unsent, test_step, test_loss, test_accuracy,
                                   test_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TrainingTimes, select, exchange, apply, compute, run)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TrainingRun, preset, curves, test_loss, test_accuracy, train_loss, parameters, k,
                                   wire_bytes, messages, compression, seconds, steps, weights, ranks_agree)

}  // namespace oktopk
