// SPDX-License-Identifier: Apache-2.0
// Saving and restoring a Reducer. A state is read in full into fresh parts, the ranks compare
// notes, and only then is anything replaced: a state that one rank cannot read changes nothing
// anywhere.
#include <array>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/optim/notes.h"
#include "oktopk/optim/reducer.h"

namespace oktopk {
namespace {

// What a state says of itself before its content.
struct Origin {
  std::uint32_t P = 0;
  std::uint32_t rank = 0;
  std::uint32_t divisor = 1;  // which makes the mean of the sum over the ranks
  std::uint64_t n = 0;
  std::string options;
  std::uint64_t steps = 0;
  AdaptiveDensity::Words adaptive{};  // where the options have it; zeros: it has not begun
};

bool is_adaptive(const Origin& origin) {
  return origin.options.find(kAdaptiveMark) != std::string::npos;
}

void put(StateWriter& state, const Origin& origin) {
  state.put(origin.P);
  state.put(origin.rank);
  state.put(origin.divisor);
  state.put(origin.n);
  state.put_text(origin.options);
  state.put(origin.steps);
  if (is_adaptive(origin))
    for (const std::uint64_t word : origin.adaptive) state.put(word);
}

Origin take_origin(StateReader& state) {
  Origin origin;
  origin.P = state.take<std::uint32_t>();
  origin.rank = state.take<std::uint32_t>();
  origin.divisor = state.take<std::uint32_t>();
  origin.n = state.take<std::uint64_t>();
  origin.options = state.take_text();
  origin.steps = state.take<std::uint64_t>();
  if (is_adaptive(origin))
    for (std::uint64_t& word : origin.adaptive) word = state.take<std::uint64_t>();
  return origin;
}

// For errors in one of many states: says in which.
template <class Read>
void read_named(std::size_t r, std::size_t count, const Read& read) {
  try {
    read();
  } catch (const UsageError& error) {
    fail<UsageError>("state ", r, " of ", count, ": ", error.what());
  }
}

}  // namespace

// The owner memory is saved twice over, in a form that any P can read, and with the algorithm's own
// state only for those who restore it as it was.
Bytes Reducer::save() const {
  require(!spoilt_,
          "reducer: an earlier step failed half-way: what is left of it is not worth saving");
  StateWriter state;
  put(state, {static_cast<std::uint32_t>(comm_.size()), static_cast<std::uint32_t>(comm_.rank()),
              static_cast<std::uint32_t>(divisor()), n(), description_, steps_, adaptive_.words()});
  state.put_all(residual());
  state.put(memory().region.begin);
  state.put_all(memory().values);
  if (tuner_) tuner_->save(state);
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
  require(origin.options == description_, "state: saved with other options (", origin.options,
          "), this reducer has ", description_, ": load_all() takes the states of all ranks");
  auto residual = state.take_all<float>();
  require(residual.size() == n(), "state: ", residual.size(), " values of residual");
  state.take<Index>();
  state.take_all<float>();
  std::optional<Tuner> tuner = tuner_;
  if (tuner) tuner->load(state);
  Parts parts = make_parts(tuner);
  parts.steps = origin.steps;
  parts.adaptive.resume(origin.adaptive);
  parts.residual = std::move(residual);
  parts.selector->load(state);
  parts.allreduce->load(state, n(), comm_.rank(), comm_.size());
  state.finish();
  return parts;
}

// Rank r continues with what ranks r, r + P, r + 2P, ... of the earlier run had.
Reducer::Parts Reducer::merge(std::span<const Bytes> states) const {
  require(!states.empty(), "state: no states were given");
  const auto P = static_cast<std::size_t>(comm_.size());
  Parts parts = make_parts(tuner_);
  parts.residual.assign(n(), 0.0F);
  Origin first;
  const auto add = [&](std::size_t r) {
    StateReader state(states[r]);
    const Origin origin = take_origin(state);
    require(origin.n == n(), "saved with n = ", origin.n, ", but this reducer has n = ", n());
    require(origin.P == states.size(), "saved by one of ", origin.P, " ranks, but ", states.size(),
            " states were given: all are needed");
    require(origin.rank == r, "saved by rank ", origin.rank, ": states must be in rank order");
    if (r == 0) first = origin;
    require(origin.steps == first.steps, "saved after ", origin.steps, " steps, state 0 after ",
            first.steps);
    require(origin.options == first.options, "saved with other options than state 0");
    require(origin.adaptive == first.adaptive, "saved with another adaptive density than state 0");
    require(origin.divisor > 0, "its sums were divided by 0");
    const float scale = static_cast<float>(divisor()) / static_cast<float>(origin.divisor);
    parts.source = hash_bytes(std::span(states[r]).first(kStateHeadBytes), parts.source);
    if (r % P != static_cast<std::size_t>(comm_.rank())) return;
    const auto residual = state.take_all<float>();
    const auto begin = state.take<Index>();
    const auto memory = state.take_all<float>();
    require(residual.size() == n() && begin <= n() && memory.size() <= n() - begin,
            "its residual or owner memory does not fit n = ", n());
    device_->accumulate({parts.residual, residual, scale});
    device_->accumulate({std::span(parts.residual).subspan(begin, memory.size()), memory, scale});
  };
  for (std::size_t r = 0; r < states.size(); ++r) read_named(r, states.size(), [&] { add(r); });
  parts.steps = first.steps;
  parts.adaptive.resume(first.adaptive);
  return parts;
}

template <class Make>
void Reducer::restore(const Make& make) {
  Parts parts;
  agree_on_success(comm_, work_, [&] { parts = make(); });
  const AdaptiveDensity::Words k = parts.adaptive.words();
  std::array<std::uint64_t, 5> least = {parts.steps, parts.source, k[0], k[1], k[2]};
  std::array<std::uint64_t, 5> most = least;
  allreduce_small(comm_, std::span<std::uint64_t>(least), Reduction::min, work_);
  allreduce_small(comm_, std::span<std::uint64_t>(most), Reduction::max, work_);
  require(least[0] == most[0], "state: the ranks' states were saved after different numbers of ",
          "steps, ", least[0], " to ", most[0]);
  require(least == most, "state: the ranks were given different states");
  steps_ = parts.steps;
  adaptive_ = parts.adaptive;
  residual_.assign(parts.residual);
  spoilt_ = false;
  replace(std::move(parts));
}

void Reducer::load(std::span<const std::byte> state) {
  restore([&] { return read(state); });
}

// A damaged state is found by the one who reads it next.
bool Reducer::finds_own(std::span<const Bytes> states) const {
  if (states.size() != static_cast<std::size_t>(comm_.size())) return false;
  try {
    StateReader state(states[static_cast<std::size_t>(comm_.rank())]);
    const Origin origin = take_origin(state);
    return origin.options == description_ && origin.n == n() && origin.P == states.size() &&
           origin.rank == static_cast<std::uint32_t>(comm_.rank());
  } catch (const UsageError&) {
    return false;
  }
}

void Reducer::load_all(std::span<const Bytes> states) {
  // Either every rank takes its own state as it is, or all merge.
  const std::uint32_t own = finds_own(states) ? 1 : 0;
  const bool all = allreduce_small(comm_, own, Reduction::min, work_) == 1;
  restore(
      [&] { return all ? read(states[static_cast<std::size_t>(comm_.rank())]) : merge(states); });
}

}  // namespace oktopk
