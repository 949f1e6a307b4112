// SPDX-License-Identifier: Apache-2.0
// The record of the last step (StepMetrics): counts are noted as the step ends, the rest is looked up when
// somebody asks. O(k).
#pragma once

#include "oktopk/reduce/synchroniser.h"

namespace oktopk {

class StepLog {
 public:
  void begin(const Communicator& comm);
  void end(std::uint64_t steps, CooView selection, const Update& update, const Communicator& comm);
  void clear() { counts = {}; }

  // The counts and times of the last step, its thresholds, and what a dense step of n values would send.
  StepMetrics metrics(Index n, int P, CooView selection, CooView sum) const;

  StepMetrics counts;
  StepTimes times;

 private:
  MessageCount before_;  // the step
};

}  // namespace oktopk
