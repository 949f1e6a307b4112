// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/step_log.h"

#include <algorithm>
#include <cmath>

namespace oktopk {
namespace {

double smallest_magnitude(CooView v) {
  double least = v.empty() ? 0 : std::fabs(v.val[0]);
  for (const float x : v.val) least = std::min(least, double{std::fabs(x)});
  return least;
}

}  // namespace

void StepLog::begin(const Communicator& comm) {
  counts = {};
  times = {};
  before_ = comm.sent_so_far();
}

void StepLog::end(std::uint64_t steps, CooView selection, const Update& update, const Communicator& comm) {
  const MessageCount sent = comm.sent_so_far() - before_;
  counts.step = steps;
  counts.selected = selection.size();
  counts.gathered = update.size();
  counts.messages = sent.messages;
  counts.wire_bytes = sent.bytes;
  counts.is_dense = update.is_dense();
  counts.skipped = update.skipped;
}

StepMetrics StepLog::metrics(Index n, int P, CooView selection, CooView sum) const {
  StepMetrics metrics = counts;
  metrics.n = n;
  metrics.dense_bytes = 2.0 * n * (P - 1.0) / P * sizeof(float);
  if (counts.selected > 0) metrics.local_threshold = smallest_magnitude(selection);
  if (counts.gathered > 0 && !counts.is_dense) metrics.global_threshold = smallest_magnitude(sum);
  metrics.times = times;
  return metrics;
}

}  // namespace oktopk
