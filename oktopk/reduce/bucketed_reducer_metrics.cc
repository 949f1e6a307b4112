// SPDX-License-Identifier: Apache-2.0
// What a BucketedReducer's last step did (step_metrics.h): counts are noted as it ends, the buckets
// are asked for the rest when someone asks. O(k).
#include "oktopk/reduce/bucketed_reducer.h"

namespace oktopk {

Update BucketedReducer::finish(const Update& update) {
  last_.note(reducers_.front()->steps(), sent_, update, comm_.sent_so_far() - before_);
  return update;
}

StepMetrics BucketedReducer::metrics() const {
  StepMetrics metrics = last_;
  metrics.n = n_;
  metrics.times = times();
  metrics.preset = reducers_.front()->allreduce().name();
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const StepMetrics bucket = reducers_[b]->metrics();
    metrics.dense_bytes += bucket.dense_bytes;
    if (bucket.preset != metrics.preset) metrics.preset.clear();
    if (b >= exchanged()) continue;  // left out; what was taken back is zero
    metrics.k += bucket.k;
    metrics.refreshed = metrics.refreshed || bucket.refreshed;
  }
  return metrics;
}

}  // namespace oktopk
