// SPDX-License-Identifier: Apache-2.0
// Reducer: steps that commit or roll back. The exchange of a step changes the accumulator once, in the pass that adds
// the gradient, and that stays. Everything else that it changes is small (selector, thresholds, cuts, counters: copied
// before) or sparse (owner memory: an undo list). The residual rule settles at the commit. COST: O(k) per step.
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/reduce/notes.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_state.h"

namespace oktopk {

void ReducerState::mark() {
  mark_.emplace(TentativeMark{density, {}, allreduce->steps() == 0});
  selector->save(mark_->selector);
  allreduce->note_changes();
}

void ReducerState::keep() {
  mark_.reset();
  allreduce->forget_changes();
}

void ReducerState::take_back() {
  if (!mark_) return;
  if (mark_->is_first) {
    use(std::optional<Tuner>(tuner));  // an exchange that has not run yet
  } else {
    allreduce->undo_changes(*setting.options.device, setting.n, setting.rank, setting.P);
  }
  const Bytes before = mark_->selector.seal();
  StateReader state(before);
  selector->load(state);
  density = mark_->density;
  mark_.reset();
  clear_results();
}

void Reducer::require_closed(std::string_view what) const {
  require(!is_open(), "reducer: ", what, " while a proposed step is open: commit() or roll_back() comes first");
}

void Reducer::mark() {
  if (is_open()) state_->mark();
}

void Reducer::copy_to(ReducerSnapshot& snapshot) const {
  state_->copy_to(snapshot);
  snapshot.is_added = is_added_;
}

void Reducer::go_back(const ReducerSnapshot& snapshot) {
  state_->keep();
  state_->go_back(snapshot);
  open_ = Open::no;
  is_flush_ = false;
  is_added_ = snapshot.is_added;
}

Update Reducer::propose(Gradient gradient, float scale) { return propose(gradient, scale, Note{}); }
Update Reducer::propose(Gradient gradient, float scale, const Note& note) {
  Span span(options_.trace, "propose", "reducer");
  require_closed("propose()");
  require(!options_.exchange, "reducer: propose() with options.exchange, but steps on the GPU cannot be taken back");
  state_->unsent.check_sound();
  open_ = Open::half;
  try {
    if (!begin_step(gradient, scale, note)) {
      open_ = Open::skipped;
      return finish({.sparse = {}, .skipped = true}, span);
    }
  } catch (const UsageError&) {
    open_ = Open::no;  // on all ranks; nothing has changed
    throw;
  }
  return complete(span, [&] { synchronise(gradient, scale); });
}

Update Reducer::propose_flush() {
  Span span(options_.trace, "propose flush", "reducer");
  require_closed("propose_flush()");
  require(!options_.exchange, "reducer: propose_flush() with options.exchange, but steps on the GPU are final");
  require(!is_added_, "reducer: propose_flush() after roll_back(), but the step that was taken back comes first");
  open_ = Open::half;
  is_flush_ = true;
  try {
    prepare_flush();
  } catch (const UsageError&) {
    open_ = Open::no;  // on all ranks; nothing has changed
    is_flush_ = false;
    throw;
  }
  state_->is_prepared = false;
  return complete(span, [&] { dense_step({}, 1.0F, *dense_); });
}

template <class Exchange>
Update Reducer::complete(Span& span, const Exchange& exchange) {
  try {
    exchange();
  } catch (const SumOverflow&) {
    throw;  // on all ranks, which are in step
  } catch (...) {
    comm_.kill();
    throw;
  }
  open_ = Open::whole;
  return finish(last_update(), span);
}

void Reducer::commit() {
  require(open_ == Open::whole || open_ == Open::skipped, "reducer: commit() without a step that propose() completed");
  const bool is_skipped = open_ == Open::skipped;
  open_ = Open::no;
  if (is_skipped) return;
  settle(is_flush_ || is_dense_step());
  state_->keep();
  is_added_ = false;
  if (!std::exchange(is_flush_, false)) count_step();
  state_->log.last.step = steps();
}

void Reducer::roll_back() {
  require(is_open(), "reducer: roll_back() without propose()");
  open_ = Open::no;
  state_->take_back();
  if (std::exchange(is_flush_, false)) is_added_ = false;  // it has no gradient
}

std::unique_ptr<Reducer> Reducer::moved_to(Communicator& comm) {
  require_closed("moved_to()");
  require(!options_.exchange, "reducer: moved_to() with options.exchange, which belongs to the ranks of before");
  state_->unsent.check_sound();
  std::unique_ptr<Reducer> moved(new Reducer(comm, n_, options_, 0));
  if (state_->unsent.may_exist()) {
    Uninitialised<float> values(n_);
    state_->unsent.take(values);
    moved->state_->unsent.give(values);
  }
  moved->state_->density = state_->density;
  moved->is_added_ = is_added_;
  return moved;
}

}  // namespace oktopk
