// SPDX-License-Identifier: Apache-2.0
// BucketedReducer: steps that commit or roll back. Every bucket's Reducer proposes its part; commit() and roll_back()
// go through all of them. A bucket that was not reached has nothing to take back. A bucket that is refused before
// anything was added takes the buckets before it back to their copies, as in a plain step.
// COST: O(k) per step beyond that of a plain one.
#include <algorithm>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/reduce/bucketed_reducer.h"
#include "oktopk/reduce/step_log.h"

namespace oktopk {

void BucketedReducer::require_closed(std::string_view what) const {
  require(!is_open(), "bucketed reducer: ", what,
          " while a proposed step is open: commit() or roll_back() comes first");
}

void BucketedReducer::begin_proposal(Gradient gradient, float scale) {
  launch(of_slices(gradient, scale, true));
  open_ = Open::half;
}

Update BucketedReducer::propose(Gradient gradient, float scale) {
  begin_proposal(gradient, scale);
  return finish_all();
}

Update BucketedReducer::propose_flush() {
  const bool is_retry = std::ranges::any_of(reducers_, [](const auto& reducer) { return reducer->is_added_; });
  require(!is_retry,
          "bucketed reducer: propose_flush() after roll_back(), but the step that was taken back comes first");
  launch([this](std::size_t b) { return reducers_[b]->propose_flush(); });
  open_ = Open::half;
  return finish_all();
}

// A UsageError ended the step. Where something has changed that only roll_back() can take back, the caller must call
// it.
void BucketedReducer::refuse(std::string_view why) {
  const bool is_final = !can_undo() && exchanged() > 0;
  const bool is_half_made =
      std::ranges::any_of(reducers_, [](const auto& reducer) { return reducer->open_ == Reducer::Open::half; });
  if (is_open() && (is_final || is_half_made)) return;
  if (is_final) broken_ = why;
  undo();
  open_ = Open::no;
}

void BucketedReducer::commit() {
  require(open_ == Open::whole || open_ == Open::skipped,
          "bucketed reducer: commit() without a step that propose() completed");
  if (std::exchange(open_, Open::no) == Open::skipped) return;
  for (const auto& reducer : reducers_) reducer->commit();
  log_->last.step = reducers_.front()->steps();
}

void BucketedReducer::roll_back() {
  check_idle("roll_back");
  require(is_open(), "bucketed reducer: roll_back() without propose()");
  open_ = Open::no;
  sent_.clear();
  for (const auto& reducer : reducers_)
    if (reducer->is_open()) reducer->roll_back();
}

}  // namespace oktopk
