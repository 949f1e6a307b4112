// SPDX-License-Identifier: Apache-2.0
// Dense steps that the caller makes himself (reducer.h): a framework's own allreduce works on its
// tensors where they live, a GPU's memory included, and is faster than any that passes host memory.
// The Reducer says when such a step is next, and keeps count of it: steps, schedule, metrics, and
// what the tuner observes. COST: O(1), but the first time, when options are compared.
#include "oktopk/base/error.h"
#include "oktopk/reduce/reducer.h"

namespace oktopk {

bool Reducer::prepare(std::optional<ExternalPrice> measured) {
  check_sound();
  if (is_prepared_) return next_is_external();
  PhaseTimer timer(options_.trace, "reducer");
  begin_metrics();
  if (tuner_) review();
  allreduce_->agree(comm_, n(), k_, settings_);
  calibrate_first(measured);
  times_ = {.exchange = timer.lap("agree")};
  is_prepared_ = true;
  return next_is_external();
}

void Reducer::prepare_flush() {
  check_sound();
  begin_metrics();
  times_ = {};
  allreduce_->agree(comm_, n(), k_, settings_);
  is_prepared_ = true;
}

// As synchronise() decides.
bool Reducer::next_is_external() const {
  if (!options_.choice.external_dense) return false;
  if (allreduce_->is_dense()) return allreduce_->options().codec.lossless();
  return density_at(options_.warmup, steps_, 0) == 1;
}

Update Reducer::end_external(const ExternalStep& made) {
  require(is_prepared_, "reducer: end_external() without prepare()");
  require(made.skipped || !has_unsent_, "reducer: end_external() of a step that did not take what is unsent");
  is_prepared_ = false;
  selection_.clear();
  outcome_ = {};
  mean_.clear();
  dense_mean_.clear();
  times_.exchange += made.seconds;
  last_.k = n();
  if (!made.skipped && !made.is_flush) {
    const bool is_warm = density_at(options_.warmup, steps_, 0) == 0;
    ++steps_;
    if (tuner_ && is_warm) observe();
  }
  const Update update{.sparse = {}, .dense = {}, .skipped = made.skipped};
  end_metrics(update);
  last_.wire_bytes += made.bytes;
  last_.is_dense = !made.skipped;
  last_.gathered = made.skipped ? 0 : n();
  return update;
}

void Reducer::fail_external() {
  spoilt_ = true;
  dead_ = comm_.size() > 1;
  comm_.kill();
}

}  // namespace oktopk
