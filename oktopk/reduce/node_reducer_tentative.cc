// SPDX-License-Identifier: Apache-2.0
// NodeReducer: steps that commit or roll back. The leaders' Reducers propose, commit and roll back. The other ranks
// hold no state but the place in the schedules, which moves at the commit. A retry sums the gradients of a node once
// more; a leader that has added the sum before does not add it again. COST: that of Reducer::propose() on leaders.
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/comm/flight.h"
#include "oktopk/reduce/density.h"
#include "oktopk/reduce/node_reducer.h"
#include "oktopk/trace/trace.h"

namespace oktopk {

void NodeReducer::require_closed(std::string_view what) const {
  require(!is_open(), "node reducer: ", what, " while a proposed step is open: commit() or roll_back() comes first");
}

// ask(): false to leave the step out. Its UsageErrors are those of all ranks, and nothing has changed.
template <class Ask>
bool NodeReducer::open_step(const Ask& ask) {
  check_sound();
  require_closed("propose()");
  require(!options_.exchange,
          "node reducer: propose() with options.exchange, but steps on the GPU cannot be taken back");
  open_ = Open::half;
  try {
    if (ask()) return true;
  } catch (const UsageError&) {
    open_ = Open::no;
    throw;
  }
  open_ = Open::skipped;
  return false;
}

template <class Exchange>
Update NodeReducer::complete(const Exchange& exchange) {
  try {
    const Update update = exchange();
    open_ = Open::whole;
    comm_.flight()->end_step();
    return update;
  } catch (const SumOverflow&) {
    comm_.kill();
    throw;
  } catch (const UsageError&) {
    spoilt_ = true;  // the leader's accumulator may hold a value that is not finite
    comm_.kill();
    throw;
  } catch (...) {
    comm_.kill();
    throw;
  }
}

Update NodeReducer::propose(Gradient gradient, float scale) {
  const Span span(options_.trace, "propose", "node");
  if (!open_step([&] { return begin_step(gradient, scale); })) return {.sparse = {}, .skipped = true};
  return complete([&] { return synchronise(gradient, scale); });
}

Update NodeReducer::propose_flush() {
  const Span span(options_.trace, "propose flush", "node");
  require(!is_retry_, "node reducer: propose_flush() after roll_back(), but the step that was taken back comes first");
  open_step([&] {
    compare_flush();
    return true;
  });
  is_flush_ = true;
  return complete([&] {
    const Update update = reducer_ ? reducer_->propose_flush() : Update{};
    return share(update, true);
  });
}

void NodeReducer::commit() {
  require(open_ == Open::whole || open_ == Open::skipped,
          "node reducer: commit() without a step that propose() completed");
  if (std::exchange(open_, Open::no) == Open::skipped) return;
  if (reducer_) reducer_->commit();
  is_retry_ = false;
  if (!std::exchange(is_flush_, false)) density_->count_step();
}

void NodeReducer::roll_back() {
  require(is_open(), "node reducer: roll_back() without propose()");
  const bool is_skipped = std::exchange(open_, Open::no) == Open::skipped;
  if (!std::exchange(is_flush_, false) && !is_skipped) is_retry_ = true;
  if (reducer_ && reducer_->is_open()) reducer_->roll_back();
  sent_ = {};
}

}  // namespace oktopk
