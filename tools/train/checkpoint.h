// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a training run: one file per rank with the weights, the optimiser's and the
// synchroniser's state and the curves so far. A file is written beside its name and then renamed,
// so a run that is killed leaves the last complete one; a run that resumes takes the newest step
// that all ranks have.
#pragma once

#include <span>
#include <string>

#include "tools/train/trainer.h"

namespace oktopk {

// Where a run stands, besides weights and optimiser.
struct TrainState {
  std::uint64_t step = 0;
  double bytes = 0;  // moved by this rank before this process
  double messages = 0;
  Curves curves;
  double stretch_loss = 0;  // since the last recorded point
  double stretch = 0;
};

// Collective. UsageError on every rank when one cannot write.
void save_checkpoint(Communicator& comm, const TrainOptions& options, const TrainState& state,
                     std::span<const float> weights, const Optimiser& optimiser);

// Collective: whether there is something to resume for a preset.
bool finds_checkpoint(Communicator& comm, const std::string& dir, const std::string& preset);

// Collective. As many files as ranks: continues bitwise. Another number: what was owed to the
// weights is shared out to the ranks there are. UsageError on every rank, and nothing changed, when
// a file is missing, damaged or of another problem.
void load_checkpoint(Communicator& comm, const TrainOptions& options, TrainState& state, std::span<float> weights,
                     Optimiser& optimiser);

}  // namespace oktopk
