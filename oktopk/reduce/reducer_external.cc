// SPDX-License-Identifier: Apache-2.0
// Reducer: unsent values that the caller moves, and dense steps that the caller makes (ReducerOptions::choice).
#include "oktopk/base/error.h"
#include "oktopk/reduce/notes.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_state.h"

namespace oktopk {

void Reducer::take_unsent(std::span<float> out) {
  require_closed("take_unsent");
  state_->unsent.take(out);
}

void Reducer::give_unsent(std::span<const float> values) {
  require_closed("give_unsent");
  state_->unsent.give(values);
}

void Reducer::forget() {
  require_closed("forget");
  is_added_ = false;
  state_->unsent.clear();
}

// Before the first exchange: all ranks have the same options and make the same call.
void Reducer::agree(std::string_view call) { state_->allreduce->agree(comm_, n_, k_, settings_, call); }

void Reducer::prepare_flush() {
  state_->unsent.check_sound();
  state_->log.begin(comm_, steps());
  agree("flush()");
  if (options_.nan_policy != NanPolicy::local)
    agree_on_success(comm_, work_, [] {}, {Call::Kind::flush, steps(), state_->check.is_on()});
  state_->is_prepared = true;
}

// Decides as step() does.
bool Reducer::next_is_external() const {
  if (!options_.choice.external_dense) return false;
  return state_->allreduce->is_dense() ? state_->allreduce->codec().lossless() : state_->density.is_dense();
}

Update Reducer::end_external(const ExternalStep& made) {
  require(state_->is_prepared, "reducer: end_external() without prepare()");
  require(made.skipped || !state_->unsent.may_exist(), "reducer: end_external(), but take_unsent() was not called");
  state_->is_prepared = false;
  state_->selection.clear();
  state_->outcome = {};
  mean_.clear();
  dense_mean_.clear();
  StepMetrics& log = state_->log.last;
  log.times.exchange += made.seconds;
  log.k = n_;
  if (!made.skipped && !made.is_flush) count_step();
  const Update update{.sparse = {}, .dense = {}, .skipped = made.skipped};
  state_->log.end(steps(), {}, update, comm_);
  log.wire_bytes += made.bytes;
  log.is_dense = !made.skipped;
  log.gathered = made.skipped ? 0 : n_;
  return update;
}

void Reducer::fail_external() {
  state_->unsent.spoil(comm_.size() > 1);
  comm_.kill();
}

}  // namespace oktopk
