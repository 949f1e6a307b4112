// SPDX-License-Identifier: Apache-2.0
// Saving and restoring a NodeReducer. A state says where its rank stood among the nodes; that of a leader holds its
// Reducer's state. Everything is read before anything changes, and an error of one rank is an error of all.
#include <sstream>

#include "oktopk/base/error.h"
#include "oktopk/base/state.h"
#include "oktopk/reduce/density.h"
#include "oktopk/reduce/node_reducer.h"
#include "oktopk/reduce/nodes.h"
#include "oktopk/reduce/notes.h"
#include "oktopk/reduce/reducer_state.h"
#include "oktopk/reduce/update_check.h"

namespace oktopk {
namespace {

std::string list(std::span<const int> leader_of) {
  std::ostringstream text;
  for (std::size_t r = 0; r < leader_of.size(); ++r) text << (r == 0 ? "" : " ") << leader_of[r];
  return text.str();
}

}  // namespace

struct NodeReducer::Saved {
  std::uint32_t P = 0;
  std::uint32_t rank = 0;
  std::uint64_t steps = 0;
  std::vector<int> leader_of;
  std::span<const std::byte> reducer;  // in the state that was read; empty unless of a leader

  static Saved take(StateReader& state) {
    require_saver(state, "a NodeReducer", ": load_all() takes the states of all ranks");
    Saved saved;
    state.take<std::uint64_t>();  // kNodeState
    saved.P = state.take<std::uint32_t>();
    saved.rank = state.take<std::uint32_t>();
    saved.steps = state.take<std::uint64_t>();
    saved.leader_of = state.take_all<int>();
    saved.reducer = state.take_view();
    state.finish();
    require(saved.rank < saved.P && saved.leader_of.size() == saved.P, "state: of rank ", saved.rank, " of ", saved.P,
            ", with the leaders of ", saved.leader_of.size());
    const bool leads = saved.leader_of[saved.rank] == static_cast<int>(saved.rank);
    require(leads != saved.reducer.empty(), "state: of rank ", saved.rank, " with leaders ", list(saved.leader_of),
            ", but ", leads ? "without" : "with", " a leader's state");
    return saved;
  }
};

void NodeReducer::write(StateWriter& state) const {
  require_closed("save()");
  require(!spoilt_, "node reducer: an earlier step failed half-way: what is left of it is not worth saving");
  state.put(kNodeState);
  state.put(static_cast<std::uint32_t>(comm_.size()));
  state.put(static_cast<std::uint32_t>(comm_.rank()));
  state.put(steps());
  state.put_all(std::span<const int>(nodes_->leader_of));
  if (reducer_)
    state.put_state([&](StateWriter& inner) { state_of(*reducer_).write(inner); });
  else
    state.put_bytes({});
}

NodeReducer::Saved NodeReducer::read(std::span<const std::byte> bytes) const {
  StateReader state(bytes);
  Saved saved = Saved::take(state);
  require_own(saved.P, saved.rank, comm_.size(), comm_.rank());
  require(saved.leader_of == nodes_->leader_of,
          "state: saved with other nodes (leaders of the ranks: ", list(saved.leader_of),
          "; now: ", list(nodes_->leader_of), "): load_all() takes the states of all");
  return saved;
}

// load() on every leader, or on none.
template <class Load>
void NodeReducer::restore(const Load& load) {
  agree_on_success(comm_, work_, [&] {
    if (reducer_) load(*reducer_);
  });
  set_steps(allreduce_small(comm_, reducer_ ? reducer_->steps() : 0, Reduction::max, work_));
  const bool has_ended = reducer_ && state_of(*reducer_).density.is_warm();
  density_->set_ended(allreduce_small(comm_, std::uint64_t{has_ended}, Reduction::max, work_) == 1);
  sent_ = {};
  spoilt_ = is_retry_ = false;
  check_->forget();
}

void NodeReducer::load(std::span<const std::byte> state) {
  require_closed("load()");
  Saved saved;
  agree_on_success(comm_, work_, [&] { saved = read(state); }, {.kind = Call::Kind::load, .has_hash = check_->is_on()});
  const auto least = allreduce_small(comm_, saved.steps, Reduction::min, work_);
  const auto most = allreduce_small(comm_, saved.steps, Reduction::max, work_);
  require(least == most, "state: the ranks' states were saved after different numbers of steps, ", least, " to ", most);
  restore([&](Reducer& reducer) { reducer.load(saved.reducer); });
}

// All states are looked at first: which of them are leaders' they say themselves.
void NodeReducer::load_all(std::size_t count, const ReadState& read_state) {
  require_closed("load_all()");
  std::vector<std::size_t> led_by;  // ranks
  const auto open = [&](std::size_t r) {
    const auto bytes = read_state(r);
    StateReader state(bytes);
    if (StateReader(state).take<std::uint64_t>() != kNodeState) return bytes;  // no nodes: all ranks led
    const Saved saved = Saved::take(state);
    look_into_state(r, count, [&] { require_place(saved.P, saved.rank, count, r); });
    return saved.reducer;
  };
  const auto look = [&] {
    require(count > 0, "state: no states were given");
    for (std::size_t r = 0; r < count; ++r)
      if (!open(r).empty()) led_by.push_back(r);
  };
  agree_on_success(comm_, work_, look, {Call::Kind::load_all});
  restore([&](Reducer& reducer) { reducer.load_all(led_by.size(), [&](std::size_t i) { return open(led_by[i]); }); });
}

}  // namespace oktopk
