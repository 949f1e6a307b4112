// SPDX-License-Identifier: Apache-2.0
// Saving and restoring a Reducer. A state is read in full into fresh parts, the ranks compare
// notes, and only then is anything replaced: a state that one rank cannot read changes nothing
// anywhere.
#include <array>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/reduce/notes.h"
#include "oktopk/reduce/reducer.h"

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

bool is_adaptive(const Origin& origin) { return origin.options.find(kAdaptiveMark) != std::string::npos; }

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

}  // namespace

// Residual and owner memory come first: whatever the options were, merging can read them.
void Reducer::write(StateWriter& state) const {
  require(!spoilt_, "reducer: an earlier step failed half-way: what is left of it is not worth saving");
  put(state, {static_cast<std::uint32_t>(comm_.size()), static_cast<std::uint32_t>(comm_.rank()),
              static_cast<std::uint32_t>(divisor()), n(), description_, steps_, adaptive_.words()});
  state.put_all(residual());
  state.put(memory().region.begin);
  state.put_all(memory().values);
  if (tuner_) tuner_->save(state);
  selector_->save(state);
  allreduce_->save(state);
}

Reducer::Parts Reducer::read(std::span<const std::byte> bytes) const {
  StateReader state(bytes);
  const Origin origin = take_origin(state);
  require(origin.n == n(), "state: saved with n = ", origin.n, ", but this reducer has n = ", n());
  require(origin.P == static_cast<std::uint32_t>(comm_.size()), "state: saved by one of ", origin.P,
          " ranks, but there are ", comm_.size(), " now: load_all() takes the states of all");
  require(origin.rank == static_cast<std::uint32_t>(comm_.rank()), "state: saved by rank ", origin.rank,
          ", but this is rank ", comm_.rank());
  require(origin.options == description_,
          "state: saved with other options (load_all() takes the states of all ranks): ", origin.options,
          "; this reducer has ", description_);
  auto residual = state.take_all_finite<float>("residual");
  require(residual.size() == n(), "state: ", residual.size(), " values of residual");
  const auto begin = state.take<Index>();
  const auto memory = state.take_all_finite<float>("owner memory");
  std::optional<Tuner> tuner = tuner_;
  if (tuner) tuner->load(state);
  Parts parts = make_parts(tuner);
  parts.steps = origin.steps;
  parts.adaptive.resume(origin.adaptive);
  parts.residual = std::move(residual);
  parts.selector->load(state);
  parts.allreduce->load(state, n(), comm_.rank(), comm_.size());
  state.finish();
  parts.allreduce->load_memory(memory);
  require(begin == parts.allreduce->memory().region.begin, "state: owner memory from ", begin,
          " on, but this rank's region begins at ", parts.allreduce->memory().region.begin);
  return parts;
}

Reducer::Merge::Merge(const Reducer& reducer, std::size_t count)
    : reducer_(&reducer), count_(count), parts_(reducer.make_parts(reducer.tuner_)) {
  require(count > 0, "state: no states were given");
  parts_.residual.assign(reducer.n(), 0.0F);
}

void Reducer::Merge::add(std::span<const std::byte> state) {
  try {
    add_next(state);
  } catch (const UsageError& error) {
    fail<UsageError>("state ", next_, " of ", count_, ": ", error.what());
  }
  ++next_;
}

// Rank r continues with what ranks r, r + P, r + 2P, ... of the earlier run had.
void Reducer::Merge::add_next(std::span<const std::byte> bytes) {
  const Reducer& to = *reducer_;
  StateReader state(bytes);
  const Origin origin = take_origin(state);
  require(origin.n == to.n(), "saved with n = ", origin.n, ", but this reducer has n = ", to.n());
  require(origin.P == count_, "saved by one of ", origin.P, " ranks, but ", count_,
          " states were given: all are needed");
  require(origin.rank == next_, "saved by rank ", origin.rank, ": states must be in rank order");
  if (next_ == 0) {
    parts_.steps = origin.steps;
    options_ = origin.options;
    adaptive_ = origin.adaptive;
    parts_.adaptive.resume(adaptive_);
  }
  require(origin.steps == parts_.steps, "saved after ", origin.steps, " steps, state 0 after ", parts_.steps);
  require(origin.options == options_, "saved with other options than state 0");
  require(origin.adaptive == adaptive_, "saved with another adaptive density than state 0");
  require(origin.divisor > 0, "its sums were divided by 0");
  const float scale = static_cast<float>(to.divisor()) / static_cast<float>(origin.divisor);
  parts_.source = hash_bytes(bytes.first(kStateHeadBytes), parts_.source);
  if (next_ % static_cast<std::size_t>(to.comm_.size()) != static_cast<std::size_t>(to.comm_.rank())) return;
  const auto residual = state.take_all_finite<float>("residual");
  const auto begin = state.take<Index>();
  const auto memory = state.take_all_finite<float>("owner memory");
  require(residual.size() == to.n() && begin <= to.n() && memory.size() <= to.n() - begin,
          "its residual or owner memory does not fit n = ", to.n());
  const std::span<float> sum = parts_.residual;
  to.device_->accumulate({sum, residual, scale});
  to.device_->accumulate({sum.subspan(begin, memory.size()), memory, scale});
  const std::size_t bad = to.device_->first_nonfinite(sum);
  require(bad == sum.size(), "the sum of what the ranks had unsent overflows at index ", bad);
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
  require(least[0] == most[0], "state: the ranks' states were saved after different numbers of ", "steps, ", least[0],
          " to ", most[0]);
  require(least == most, "state: the ranks were given different states");
  steps_ = parts.steps;
  adaptive_ = parts.adaptive;
  residual_.assign(parts.residual);
  spoilt_ = false;
  has_unsent_ = true;
  replace(std::move(parts));
}

void Reducer::load(std::span<const std::byte> state) {
  restore([&] { return read(state); });
}

void Reducer::load(Merge&& merge) {
  restore([&] {
    require(merge.next_ == merge.count_, "state: ", merge.next_, " of ", merge.count_, " states were merged");
    return std::move(merge.parts_);
  });
}

// A damaged state is found by the one who reads it next.
bool Reducer::is_own(std::size_t count, std::span<const std::byte> bytes) const {
  if (count != static_cast<std::size_t>(comm_.size())) return false;
  try {
    StateReader state(bytes);
    const Origin origin = take_origin(state);
    return origin.options == description_ && origin.n == n() && origin.P == count &&
           origin.rank == static_cast<std::uint32_t>(comm_.rank());
  } catch (const UsageError&) {
    return false;
  }
}

void Reducer::load_all(std::size_t count, const ReadState& read_state) {
  // Either every rank takes its own state as it is, or all merge.
  const auto rank = static_cast<std::size_t>(comm_.rank());
  if (all_own(comm_, work_, count, [&] { return is_own(count, read_state(rank)); })) return load(read_state(rank));
  restore([&] {
    Merge merge(*this, count);
    for (std::size_t r = 0; r < count; ++r) merge.add(read_state(r));
    return std::move(merge.parts_);
  });
}

}  // namespace oktopk
