// SPDX-License-Identifier: Apache-2.0
// Saving and restoring a Reducer. A state is read in full into fresh parts, the ranks compare
// notes, and only then is anything replaced: a state that one rank cannot read changes nothing
// anywhere.
#include <algorithm>

#include "oktopk/base/error.h"
#include "oktopk/optim/notes.h"
#include "oktopk/optim/reducer.h"

namespace oktopk {
namespace {

// What a state says of itself before its content.
struct Origin {
  std::uint32_t P = 0;
  std::uint32_t rank = 0;
  std::uint64_t n = 0;
  std::string options;
  std::uint64_t steps = 0;
};

void put(StateWriter& state, const Origin& origin) {
  state.put(origin.P);
  state.put(origin.rank);
  state.put(origin.n);
  state.put_text(origin.options);
  state.put(origin.steps);
}

Origin take_origin(StateReader& state) {
  Origin origin;
  origin.P = state.take<std::uint32_t>();
  origin.rank = state.take<std::uint32_t>();
  origin.n = state.take<std::uint64_t>();
  origin.options = state.take_text();
  origin.steps = state.take<std::uint64_t>();
  return origin;
}

}  // namespace

// The owner memory is saved twice over, in a form that any P can read, and with the algorithm's own
// state only for those who restore it as it was.
Bytes Reducer::save() const {
  StateWriter state;
  put(state, {static_cast<std::uint32_t>(comm_.size()), static_cast<std::uint32_t>(comm_.rank()),
              n(), description(), steps_});
  state.put_all(residual());
  state.put(memory().region.begin);
  state.put_all(memory().values);
  selector_->save(state);
  allreduce_->save(state);
  return state.seal();
}

Reducer::Parts Reducer::read(std::span<const std::byte> bytes) const {
  StateReader state(bytes);
  const Origin origin = take_origin(state);
  require(origin.n == n(), "state: saved with n = ", origin.n, ", but this reducer has n = ", n());
  require(origin.P == static_cast<std::uint32_t>(comm_.size()), "state: saved by one of ", origin.P,
          " ranks, but there are ", comm_.size(), " now: load_all() takes the states of all");
  require(origin.rank == static_cast<std::uint32_t>(comm_.rank()), "state: saved by rank ",
          origin.rank, ", but this is rank ", comm_.rank());
  require(origin.options == description(), "state: saved with other options (", origin.options,
          "): load_all() takes the states of all ranks");
  Parts parts = make_parts();
  parts.steps = origin.steps;
  parts.residual = state.take_all<float>();
  require(parts.residual.size() == n(), "state: ", parts.residual.size(), " values of residual");
  state.take<Index>();
  state.take_all<float>();
  parts.selector->load(state);
  parts.allreduce->load(state, n(), comm_.rank(), comm_.size());
  state.finish();
  return parts;
}

// Rank r continues with what ranks r, r + P, r + 2P, ... of the earlier run had.
Reducer::Parts Reducer::merge(std::span<const Bytes> states) const {
  require(!states.empty(), "state: no states were given");
  const auto P = static_cast<std::size_t>(comm_.size());
  Parts parts = make_parts();
  parts.residual.assign(n(), 0.0F);
  const float scale = static_cast<float>(P) / static_cast<float>(states.size());
  for (std::size_t r = 0; r < states.size(); ++r) {
    StateReader state(states[r]);
    const Origin origin = take_origin(state);
    require(origin.n == n() && origin.P == states.size() && origin.rank == r, "state ", r,
            ": saved by rank ", origin.rank, " of ", origin.P, " with n = ", origin.n,
            ", expected rank ", r, " of ", states.size(), " with n = ", n());
    if (r == 0) parts.steps = origin.steps;
    require(origin.steps == parts.steps, "state ", r, ": saved after ", origin.steps,
            " steps, state 0 after ", parts.steps);
    if (r % P != static_cast<std::size_t>(comm_.rank())) continue;
    const auto residual = state.take_all<float>();
    const auto begin = state.take<Index>();
    const auto memory = state.take_all<float>();
    require(residual.size() == n() && begin <= n() && memory.size() <= n() - begin, "state ", r,
            ": its residual or owner memory does not fit n = ", n());
    device_->accumulate(parts.residual, residual, scale);
    device_->accumulate(std::span(parts.residual).subspan(begin, memory.size()), memory, scale);
  }
  return parts;
}

template <class Make>
void Reducer::restore(const Make& make) {
  Parts parts;
  Note note;
  try {
    parts = make();
  } catch (const UsageError& error) {
    note = {Severity::error, error.what()};
  }
  note = compare_notes(comm_, note, work_);
  require(note.severity == Severity::fine, note.text);
  std::array<std::uint64_t, 2> range = {parts.steps, parts.steps};
  allreduce_small(comm_, std::span(range).first(1), Reduction::min, work_);
  allreduce_small(comm_, std::span(range).last(1), Reduction::max, work_);
  require(range[0] == range[1], "state: the ranks' states were saved after different numbers of ",
          "steps, ", range[0], " to ", range[1]);
  steps_ = parts.steps;
  residual_ = std::move(parts.residual);
  selector_ = std::move(parts.selector);
  allreduce_ = std::move(parts.allreduce);
  selection_.clear();
}

void Reducer::load(std::span<const std::byte> state) {
  restore([&] { return read(state); });
}

void Reducer::load_all(std::span<const Bytes> states) {
  restore([&] {
    if (states.size() == static_cast<std::size_t>(comm_.size())) {
      StateReader state(states[static_cast<std::size_t>(comm_.rank())]);
      if (take_origin(state).options == description())
        return read(states[static_cast<std::size_t>(comm_.rank())]);
    }
    return merge(states);
  });
}

}  // namespace oktopk
