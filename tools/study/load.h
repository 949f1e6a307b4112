// SPDX-License-Identifier: Apache-2.0
// How evenly the work is spread over the ranks, seen from outside through a LoggingCommunicator:
//   split   the one exchange with P - 1 messages (oktopk is given a bucket of P, circulant direct
//           skips): what an owner receives of its region from the others
//   share   what a rank sends in the first round of the gather, which is the last ceil(log2 P)
//           exchanges of the step: its own share and nothing else
// Framing is included. All selections are exact, so that cuts alone make the difference.
#pragma once

#include <vector>

#include "oktopk/reduce/reducer.h"
#include "tools/study/stream.h"
#include "tools/study/trace.h"

namespace oktopk {

struct LoadOptions {
  std::vector<ReducerOptions> cases;  // bucket, skips, selector, NaN policy: set by measure_load
  SourceOptions source;
};

// Per step, largest / mean over the ranks. Shares: only of steps that do not evaluate thresholds,
// because those gather everything.
struct LoadRun {
  std::vector<double> split;
  std::vector<double> share;
  std::vector<double> total;  // all bytes received
  // Entries that owners would get if tiles of 256 indices were dealt round to them (tile t to rank
  // t mod P) instead of regions.
  std::vector<double> dealt;
  double bytes = 0;     // received per rank and step, mean
  double balanced = 0;  // oktopk: part of the steps in which shares were balanced
};

// How many of the indices each of P owners has when tiles of 256 are dealt round.
std::vector<double> dealt_counts(std::span<const Index> idx, int P);

// What one rank's step looked like. REQUIRES: P >= 4, so that the split cannot be mistaken.
struct StepLoad {
  double split = 0, share = 0, total = 0;  // bytes
  std::size_t after_split = 0;             // exchanges
};
StepLoad load_of(std::span<const Exchange> exchanges, int P);

// Collective; every rank gets it. One run for each case. UsageError when P < 4.
std::vector<LoadRun> measure_load(Communicator& comm, const LoadOptions& options);

}  // namespace oktopk
