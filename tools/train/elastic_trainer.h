// SPDX-License-Identifier: Apache-2.0
// A training run whose ranks come and go: the network of trainer.h over an ElasticReducer. A step draws the same global
// batch whatever the number of members; each member computes its share, and the shares count by their size. A member
// that joins gets weights, optimiser and step from the others. `oktopk train --elastic` runs it (docs/reliability.md).
// COST per step: that of a Reducer's step, the agreement, and one pass over the gradient.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "oktopk/comm/elastic_world.h"
#include "oktopk/elastic/elastic_reducer.h"
#include "tools/train/problem.h"
#include "tools/train/trainer.h"

namespace oktopk {

// As one member saw it.
struct ElasticRun {
  double test_loss = 0, test_accuracy = 0;
  std::uint64_t steps = 0;
  std::uint64_t epoch = 0;        // of the last step
  std::vector<MemberId> members;  // in that epoch
  std::vector<MemberId> lost;     // since this member has joined
  std::vector<MemberId> joined;   // the same
  bool is_first = false;          // this member has the lowest rank
  std::string weights;            // their hash, equal on all members
};

struct ElasticTrainHooks {
  // After each committed step, on every member: its rank, the step, and the loss of its own share.
  std::function<void(int rank, std::uint64_t step, double loss)> on_step = {};
  std::function<void(const MembershipChange&)> on_change = {};
};

// The part of a global batch of `batch` samples that rank `rank` of P computes. Shares differ by at most one sample.
struct BatchShare {
  std::uint64_t first = 0, count = 0;
};
BatchShare share_of(std::uint64_t batch, int rank, int P);

// Collective over the members. `batch`: samples per step of all members together; equal on all of them, as `options`
// are. Returns when every member that lives knows that the run is over. UsageError for options that need ranks which
// stay: nodes, clipping by the global norm, sparsified updates. CommError: this member is no longer part of the run.
ElasticRun train_elastic(ElasticWorld& world, const LearningProblem& problem, const TrainOptions& options,
                         std::uint64_t batch, const ElasticTrainHooks& hooks = {});

}  // namespace oktopk
