// SPDX-License-Identifier: Apache-2.0
// All that comes before a step of a Reducer, and what depends on it: preset auto, which takes the tuner's choice by a
// given or measured profile and corrects it by the times of steps, and dense steps that the caller makes himself. The
// Reducer says when such a step is next, and counts it.
#include "oktopk/base/error.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_state.h"
#include "oktopk/reduce/step_log.h"

namespace oktopk {

bool Reducer::prepare(std::optional<ExternalPrice> measured) {
  unsent().check_sound();
  if (is_prepared_) return next_is_external();
  PhaseTimer timer(options_.trace, "reducer");
  log_->begin(comm_);
  review();
  state_->allreduce->agree(comm_, n_, k_, settings_);
  if (is_calibration_due()) {
    measured_ = calibrate(comm_, {.cpu = options_.cpu, .external_dense = measured});
    use(*measured_);
  }
  log_->times = {.exchange = timer.lap("agree")};
  is_prepared_ = true;
  return next_is_external();
}

void Reducer::prepare_flush() {
  unsent().check_sound();
  log_->begin(comm_);
  state_->allreduce->agree(comm_, n_, k_, settings_);
  is_prepared_ = true;
}

// Decides as step() does.
bool Reducer::next_is_external() const {
  if (!options_.choice.external_dense) return false;
  return allreduce().is_dense() ? allreduce().options().codec.lossless() : density().is_dense();
}

Update Reducer::end_external(const ExternalStep& made) {
  require(is_prepared_, "reducer: end_external() without prepare()");
  require(made.skipped || !unsent().may_exist(), "reducer: end_external() of a step that did not take what is unsent");
  is_prepared_ = false;
  selection_.clear();
  *outcome_ = {};
  mean_.clear();
  dense_mean_.clear();
  log_->times.exchange += made.seconds;
  log_->counts.k = n_;
  if (!made.skipped && !made.is_flush) {
    const bool is_warm = density().is_warm();
    density().count_step();
    if (is_warm) observe();
  }
  const Update update{.sparse = {}, .dense = {}, .skipped = made.skipped};
  log_->end(steps(), selection_, update, comm_);
  log_->counts.wire_bytes += made.bytes;
  log_->counts.is_dense = !made.skipped;
  log_->counts.gathered = made.skipped ? 0 : n_;
  return update;
}

void Reducer::fail_external() {
  unsent().spoil(comm_.size() > 1);
  comm_.kill();
}

void Reducer::use(const Profile& profile) {
  require(state_->tuner && !state_->tuner->is_calibrated(),
          "reducer: a profile is for preset auto, before the first step");
  if (options_.profile) return;
  const Method before = state_->tuner->choice().method;
  state_->tuner->use(profile);
  if (state_->tuner->choice().method != before) adopt_choice();
}

// Loses nothing: an owner takes its memory into its residual.
void Reducer::adopt_choice() {
  unsent().fold_memory();
  state_->use(std::optional<Tuner>(state_->tuner));
  clear_results();
}

bool Reducer::is_calibration_due() const {
  return state_->tuner && !state_->tuner->is_calibrated() && !options_.profile && comm_.size() > 1;
}

// Preset auto: collective when it is due, which depends on the number of steps alone. It runs between two steps,
// because the caller still looks at the results of the last one after it.
void Reducer::review() {
  if (!state_->tuner || comm_.size() == 1 || !state_->tuner->is_review_due()) return;
  // The shortest time counts: the rank that came last waited for nobody.
  Tuner::Summary summary = state_->tuner->summary();
  summary[0] = -summary[0];
  allreduce_small(comm_, std::span<double>(summary), Reduction::max, work_);
  summary[0] = -summary[0];
  if (state_->tuner->review(summary)) adopt_choice();
}

void Reducer::observe() {
  if (!state_->tuner || comm_.size() == 1 || !options_.choice.review) return;
  const StepTimes& times = log_->times;
  state_->tuner->observe(times.select + times.exchange + times.settle, static_cast<double>(outcome_->arrived),
                         static_cast<double>(outcome_->merged));
}

}  // namespace oktopk
