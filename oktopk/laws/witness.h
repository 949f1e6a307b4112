// SPDX-License-Identifier: Apache-2.0
// One step as all ranks saw it, gathered as dense vectors, so that laws are plain arithmetic over them.
#pragma once

#include <vector>

#include "oktopk/comm/decorators.h"
#include "oktopk/laws/subject.h"
#include "oktopk/laws/truth.h"

namespace oktopk {

struct Trial;

using Dense = std::vector<double>;  // by index

struct Witness {
  StepRecord record;
  std::vector<Dense> accumulators;  // by rank: residual + gradient, before the selection
  std::vector<Dense> updates;       // the mean, as each rank received it
  Dense sum;                        // over the ranks, before it is divided by P
  std::vector<Dense> residuals;     // after the step
  Dense memory_before;              // m of all owners, laid out over [0, n)
  Dense memory_after;
  std::vector<Traffic> traffic;
};

// Runs one step and gathers the data of Truth over `report` (a sound communicator of the same ranks), on rank `root`,
// or on every rank when root < 0. Leaves out the accumulators of dense algorithms. `received`: the update of this rank.
StepRecord record_step(Communicator& report, Subject& subject, std::span<const float> gradient, int root = -1,
                       Update* received = nullptr);

// Runs one step of a Reducer or NodeReducer on `counting` and gathers over `report` (the sound communicator beneath).
// Fields by rank or by index are filled on rank `root` only, or on every rank when root < 0.
Witness witness_step(Communicator& report, CountingCommunicator& counting, Synchroniser& sync,
                     std::span<const float> gradient, int root = -1);

// The vectors of all ranks, of equal length, in rank order, on rank `root`, or on every rank when root < 0.
std::vector<Dense> gather_dense(Communicator& comm, const Dense& mine, int root = -1);

// Every rank's bytes, which may differ in number, and every rank's entries, on rank `root`, or on every rank when root
// < 0.
std::vector<Bytes> gather_bytes(Communicator& comm, std::span<const std::byte> mine, int root = -1);
std::vector<Entries> gather_entries(Communicator& comm, CooView mine, int root = -1);

// A number from each rank.
std::vector<double> ask_all(Communicator& comm, double mine);

// The first rank that says no; -1: all say yes. Collective.
int first_that_denies(Communicator& comm, bool mine);

// A hash of updates in their order.
std::uint64_t fold(std::uint64_t hash, const Update& update);

// Makes the steps [from, to) of the trial and folds their updates.
std::uint64_t run_steps(Synchroniser& sync, const Trial& trial, int from, int to);

Dense add_up(std::span<const Dense> terms);

}  // namespace oktopk
