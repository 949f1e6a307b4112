// SPDX-License-Identifier: Apache-2.0
// What a Reducer's last step did (step_metrics.h): counts are noted as it ends, the rest is looked
// up when someone asks. O(k).
#include <algorithm>
#include <cmath>

#include "oktopk/reduce/reducer.h"

namespace oktopk {
namespace {

double smallest_magnitude(CooView v) {
  double least = v.empty() ? 0 : std::fabs(v.val[0]);
  for (const float x : v.val) least = std::min(least, double{std::fabs(x)});
  return least;
}

}  // namespace

void Reducer::begin_metrics() {
  last_ = {};
  before_ = comm_.sent_so_far();
}

void Reducer::end_metrics(const Update& update) {
  last_.note(steps_, selection_, update, comm_.sent_so_far() - before_);
  last_.refreshed = !update.skipped && outcome_.refreshed;
}

StepMetrics Reducer::metrics() const {
  StepMetrics metrics = last_;
  const double P = comm_.size();
  metrics.n = n();
  metrics.preset = allreduce_->name();
  metrics.dense_bytes = 2.0 * n() * (P - 1) / P * sizeof(float);
  if (last_.selected > 0) metrics.local_threshold = smallest_magnitude(selection_);
  if (last_.gathered > 0 && !last_.is_dense) metrics.global_threshold = smallest_magnitude(outcome_.update);
  metrics.times = times_;
  return metrics;
}

}  // namespace oktopk
