// SPDX-License-Identifier: Apache-2.0
// What all ranks saw of one step, gathered as dense vectors, so that laws are plain arithmetic over
// them.
#pragma once

#include <vector>

#include "oktopk/comm/decorators.h"
#include "tests/laws/subject.h"
#include "tests/laws/truth.h"

namespace oktopk {

using Dense = std::vector<double>;  // by index

struct Witness {
  StepRecord record;
  std::vector<Dense> accumulators;  // by rank: residual + gradient, before the selection
  std::vector<Dense> updates;       // the mean, as each rank received it
  Dense sum;                        // what the update applies of all ranks, not yet the mean
  std::vector<Dense> residuals;     // after the step
  Dense memory_before;              // m of all owners, laid out over [0, n)
  Dense memory_after;
  std::vector<Traffic> traffic;
};

// Runs one step and gathers over `report` (a sound communicator of the same ranks) what Truth
// needs. Only rank `root` gets it, or everyone when root < 0. The accumulators of dense algorithms
// are left out. `received`: what the step gave this rank.
StepRecord record_step(Communicator& report, Subject& subject, std::span<const float> gradient, int root = -1,
                       Update* received = nullptr);

// Runs one step of a Reducer or NodeReducer on `counting` and gathers over `report` (the sound
// communicator beneath). What is by rank or by index is there on rank `root` only, or on every rank
// when root < 0.
Witness witness_step(Communicator& report, CountingCommunicator& counting, Synchroniser& sync,
                     std::span<const float> gradient, int root = -1);

// All ranks' vectors of equal length, in rank order, on rank `root`, or on every rank when root <
// 0.
std::vector<Dense> gather_dense(Communicator& comm, const Dense& mine, int root = -1);

// Every rank's entries, on rank `root`, or on every rank when root < 0.
std::vector<Entries> gather_entries(Communicator& comm, CooView mine, int root = -1);

// A number from each rank.
std::vector<double> ask_all(Communicator& comm, double mine);

// Changes when a bit of any update does, or their order.
std::uint64_t fold(std::uint64_t hash, const Update& update);

Dense add_up(std::span<const Dense> terms);

}  // namespace oktopk
