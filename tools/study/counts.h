// SPDX-License-Identifier: Apache-2.0
// How many entries selectors and algorithms let through, as multiples of k, with error feedback.
// Every selector runs in the same surroundings: preset topka, which applies all that is sent, so
// that the selector alone makes the difference. A selection never exceeds 2k (the contract of
// select/selector.h), whatever the threshold would let through.
#pragma once

#include <string>
#include <vector>

#include "oktopk/comm/communicator.h"
#include "tools/study/stream.h"

namespace oktopk {

struct CountOptions {
  SourceOptions source;
  double density = 0.01;
};

struct CountRun {
  std::string name;
  bool global = false;           // the update's size, or a rank's selection's
  std::vector<double> ratios;    // of all ranks; the first quarter of the steps is left out
  std::vector<double> per_step;  // mean over the ranks, from the first step on
};

// Collective.
std::vector<CountRun> measure_counts(Communicator& comm, const CountOptions& options);

}  // namespace oktopk
