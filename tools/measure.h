// SPDX-License-Identifier: Apache-2.0
// One row of the bench: a preset on one problem, timed, counted and, if asked, checked.
#pragma once

#include <cstdint>
#include <string>

#include "oktopk/comm/communicator.h"
#include "oktopk/model/cost.h"
#include "oktopk/optim/reducer.h"
#include "tools/laws/inputs.h"

namespace oktopk {

struct MeasureOptions {
  ReducerOptions reducer;
  Index n = 0;
  Input data = Input::gaussian;
  int warm_up = 5;
  int iterations = 20;
  bool check = false;
  bool feedback = false;  // keep residuals from step to step, as training does
  std::uint64_t seed = 1;
};

// Times: each rank's median over the iterations; then median, least and largest over the ranks.
// Counts: per step, of the rank with most, full-duplex (see Traffic); median over the iterations,
// so that the rare refresh step does not show, and mean, in which it does.
struct Row {
  std::string preset;
  double n = 0;
  double k = 0;
  int P = 1;
  double time = 0, time_min = 0, time_max = 0;  // seconds
  double messages = 0, messages_mean = 0;
  double bytes = 0, bytes_mean = 0;
  double selected = 0;  // entries in the update, median
  Prediction predicted;
  long wrong = -1;  // entries that differ from the oracle; -1: not checked
  std::string detail;

  double words_per_k() const { return k > 0 ? bytes / 4 / k : 0; }
  double words_per_k_mean() const { return k > 0 ? bytes_mean / 4 / k : 0; }
  double effective_bandwidth() const {
    return time > 0 ? 4 * n / time : 0;
  }  // bytes/s of dense gradient
};

// Collective; the row is complete on rank 0 only.
Row measure(Communicator& comm, const MeasureOptions& options);

}  // namespace oktopk
