// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/reducer_state.h"

#include <array>
#include <cctype>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/reduce/notes.h"
#include "oktopk/reduce/reducer_options.h"

namespace oktopk {
namespace {

// All but the warm-up must be equal.
std::string without_warmup(std::string_view description) { return with_warmup(description, {}); }

bool is_adaptive(const StateOrigin& origin) { return origin.options.find(kAdaptiveMark) != std::string::npos; }

// By the first bytes of the content. A BucketedReducer and an optimiser begin with a text, after its length. A Reducer
// begins with P, rank and divisor; three letters there would be a divisor of millions.
std::string_view saver_of(StateReader state) {
  if (state.take<std::uint64_t>() == kNodeState) return "a NodeReducer";
  std::array<char, 3> text{};
  for (char& letter : text) letter = state.take<char>();
  for (const char letter : text)
    if (std::isalpha(static_cast<unsigned char>(letter)) == 0) return "a Reducer";
  return std::string_view(text.data(), text.size()) == "ten" ? "a BucketedReducer" : "an optimiser";
}

}  // namespace

void require_saver(StateReader state, std::string_view wanted, std::string_view hint) {
  const std::string_view saver = saver_of(state);
  require(saver == wanted, "state: saved by ", saver, ", but ", wanted, " loads it", hint);
}

void require_own(std::uint32_t savers, std::uint32_t saved_rank, int P, int rank) {
  require(savers == static_cast<std::uint32_t>(P), "state: saved by one of ", savers, " ranks, but there are ", P,
          " now: load_all() takes the states of all");
  require(saved_rank == static_cast<std::uint32_t>(rank), "state: saved by rank ", saved_rank, ", but this is rank ",
          rank);
}

void require_place(std::uint32_t savers, std::uint32_t saved_rank, std::size_t count, std::size_t r) {
  require(savers == count, "saved by one of ", savers, " ranks, but ", count, " states were given: all are needed");
  require(saved_rank == r, "saved by rank ", saved_rank, ": states must be in rank order");
}

void look_into_state(std::size_t r, std::size_t count, const std::function<void()>& act) {
  try {
    act();
  } catch (const UsageError& error) {
    fail<UsageError>("state ", r, " of ", count, ": ", error.what());
  }
}

void require_same(std::string_view saved, std::string_view mine, std::string_view hint) {
  if (saved == mine) return;
  const auto [theirs, ours] = first_difference(saved, mine);
  fail<UsageError>("state: saved with ", theirs, ", but this reducer has ", ours, hint);
}

void StateOrigin::write(StateWriter& state) const {
  state.put(P, rank, divisor, n);
  state.put_text(options);
  state.put(steps);
  if (is_adaptive(*this))
    for (const std::uint64_t word : adaptive) state.put(word);
}

StateOrigin StateOrigin::read(StateReader& state) {
  require_saver(state, "a Reducer");
  StateOrigin origin;
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

ReducerState::ReducerState(const ReducerSetting& its_setting, const std::optional<Tuner>& its_tuner)
    : setting(its_setting), density(setting.options, setting.n), unsent(*setting.options.device, setting.n) {
  use(its_tuner);
}

void ReducerState::use(const std::optional<Tuner>& its_tuner) {
  const ReducerOptions& options = setting.options;
  const Preset& preset = find_preset(its_tuner ? its_tuner->choice().method.preset : options.preset);
  auto exchange =
      make_allreduce(preset, its_tuner ? options_of(its_tuner->choice().method, options) : options.allreduce);
  selector =
      make_selector(selector_of(options, preset, options.allreduce), selector_options(options.allreduce, setting.P));
  allreduce = std::move(exchange);
  rule = &residual_rule(allreduce->options().residual);
  tuner = its_tuner;
  unsent.belongs_to(*allreduce);
}

void ReducerState::adopt_choice() {
  unsent.fold_memory();
  use(std::optional<Tuner>(tuner));
  clear_results();
}

void ReducerState::use_profile(const Profile& profile) {
  require(tuner && !tuner->is_calibrated(), "reducer: a profile is for preset auto, before the first step");
  if (setting.options.profile) return;
  const Method before = tuner->choice().method;
  tuner->use(profile);
  if (tuner->choice().method != before) adopt_choice();
}

bool ReducerState::is_calibration_due() const {
  return tuner && !tuner->is_calibrated() && !setting.options.profile && setting.P > 1;
}

void ReducerState::clear_results() {
  selection.clear();
  log.last = {};
  is_prepared = false;
}

Prediction ReducerState::predict(const Problem& problem) const {
  return with_agreement(allreduce->predict(problem), setting.options, problem.P, problem.P);
}

// Residual and owner memory come first, so that a merge can read them with any options.
void ReducerState::write(StateWriter& state) const {
  require(!unsent.is_spoilt(), "reducer: an earlier step failed half-way: what is left of it is not worth saving");
  settle_gpu();
  StateOrigin{static_cast<std::uint32_t>(setting.P),
              static_cast<std::uint32_t>(setting.rank),
              static_cast<std::uint32_t>(setting.divisor),
              setting.n,
              with_warmup(setting.description, density.warmup()),
              density.steps(),
              density.adaptive().words()}
      .write(state);
  unsent.write(state);
  if (tuner) tuner->save(state);
  selector->save(state);
  allreduce->save(state);
}

void ReducerState::read(std::span<const std::byte> bytes) {
  StateReader state(bytes);
  const StateOrigin origin = StateOrigin::read(state);
  require(origin.n == setting.n, "state: saved with n = ", origin.n, ", but this reducer has n = ", setting.n);
  require_own(origin.P, origin.rank, setting.P, setting.rank);
  require_same(without_warmup(origin.options), without_warmup(setting.description),
               ": load_all() takes the states of all ranks");
  const SavedUnsent saved = SavedUnsent::read(state);
  require(saved.residual.size() == setting.n, "state: ", saved.residual.size(), " values of residual");
  if (tuner) {
    tuner->load(state);
    use(std::optional<Tuner>(tuner));
  }
  continue_after(origin);
  unsent.restore(saved.residual, true, false);
  selector->load(state);
  allreduce->load(state, setting.n, setting.rank, setting.P);
  state.finish();
  allreduce->load_memory(*setting.options.device, saved.memory);
  const MemoryLayout mine = allreduce->memory();
  const MemoryLayout& layout = saved.layout;
  require(layout.region.begin == mine.region.begin && layout.tile == mine.tile && layout.stride == mine.stride,
          "state: owner memory from ", layout.region.begin, " on, but this rank's region begins at ",
          mine.region.begin);
}

void ReducerState::continue_after(const StateOrigin& origin) {
  density.begin_at({.steps = origin.steps});
  density.continue_after(warmup_in(origin.options));
  density.adaptive().resume(origin.adaptive);
  source = hash_text(describe(density.warmup()));
}

bool ReducerState::is_own(std::span<const std::byte> bytes) const {
  StateReader state(bytes);
  const StateOrigin origin = StateOrigin::read(state);
  return without_warmup(origin.options) == without_warmup(setting.description) && origin.n == setting.n &&
         origin.P == static_cast<std::uint32_t>(setting.P) && origin.rank == static_cast<std::uint32_t>(setting.rank);
}

// Cheap enough for every step: the residual is copied as it is, and nothing is sealed before it is needed.
void ReducerState::copy_to(ReducerSnapshot& snapshot) const {
  settle_gpu();
  snapshot.density = density;
  snapshot.tuner = tuner;
  snapshot.is_spoilt = unsent.is_spoilt();
  snapshot.has_unsent = unsent.may_exist();
  snapshot.residual.resize(unsent.may_exist() ? setting.n : 0);
  if (unsent.may_exist()) setting.options.device->read(unsent.values(), snapshot.residual.data());
  snapshot.rest = {};
  selector->save(snapshot.rest);
  allreduce->save(snapshot.rest);
  unsent.write_memory(snapshot.rest);
}

void ReducerState::go_back(const ReducerSnapshot& snapshot) {
  leave_gpu();
  const std::optional<Tuner> now = tuner;
  const Bytes rest = snapshot.rest.seal();
  StateReader state(rest);
  use(snapshot.tuner);
  selector->load(state);
  allreduce->load(state, setting.n, setting.rank, setting.P);
  allreduce->load_memory(*setting.options.device, state.take_all<float>());
  state.finish();
  density = *snapshot.density;
  unsent.restore(snapshot.residual, snapshot.has_unsent, snapshot.is_spoilt);
  clear_results();
  if (now && now->is_calibrated() && !tuner->is_calibrated()) use_profile(now->profile());  // nobody measures again
}

StateMerge::StateMerge(const ReducerState& state, std::size_t count)
    : count_(count), state_(std::make_unique<ReducerState>(state.setting, state.tuner)) {
  require(count > 0, "state: no states were given");
}

void StateMerge::add(std::span<const std::byte> state) {
  look_into_state(next_, count_, [&] { add_next(state); });
  ++next_;
}

void StateMerge::add_next(std::span<const std::byte> bytes) {
  const ReducerSetting& to = state_->setting;
  StateReader state(bytes);
  const StateOrigin origin = StateOrigin::read(state);
  require(origin.n == to.n, "saved with n = ", origin.n, ", but this reducer has n = ", to.n);
  require_place(origin.P, origin.rank, count_, next_);
  if (next_ == 0) {
    first_ = origin;
    state_->continue_after(origin);
  }
  require(origin.steps == first_.steps, "saved after ", origin.steps, " steps, state 0 after ", first_.steps);
  require(origin.options == first_.options, "saved with other options than state 0");
  require(origin.adaptive == first_.adaptive, "saved with another adaptive density than state 0");
  require(origin.divisor > 0, "its sums were divided by 0");
  state_->source = hash_bytes(bytes.first(kStateHeadBytes), state_->source);
  if (next_ % static_cast<std::size_t>(to.P) != static_cast<std::size_t>(to.rank)) return;
  const SavedUnsent saved = SavedUnsent::read(state);
  require(saved.residual.size() == to.n, "its residual does not fit n = ", to.n);
  const float scale = static_cast<float>(to.divisor) / static_cast<float>(origin.divisor);
  const Device& device = *to.options.device;
  Residual& sum = state_->unsent.residual();
  sum.add_host(saved.residual, scale);
  sum.add(saved.remembered(to.n, scale));
  const std::size_t bad = device.first_nonfinite(sum.values());
  require(bad == to.n, "the sum of what the ranks had unsent overflows at index ", bad);
}

std::unique_ptr<ReducerState> StateMerge::finish() {
  require(next_ == count_, "state: ", next_, " of ", count_, " states were merged");
  state_->unsent.set_may_exist(true);
  return std::move(state_);
}

void Reducer::write(StateWriter& state) const {
  require_closed("save()");
  state_->write(state);
}

void Reducer::restore(const std::function<std::unique_ptr<ReducerState>()>& make) {
  require_closed("load()");
  agree("load()");
  std::unique_ptr<ReducerState> state;
  agree_on_success(comm_, work_, [&] { state = make(); },
                   {.kind = Call::Kind::load, .has_hash = state_->check.is_on()});
  const AdaptiveDensity::Words k = state->density.adaptive().words();
  std::array<std::uint64_t, 5> least = {state->density.steps(), state->source, k[0], k[1], k[2]}, most = least;
  allreduce_small(comm_, std::span<std::uint64_t>(least), Reduction::min, work_);
  allreduce_small(comm_, std::span<std::uint64_t>(most), Reduction::max, work_);
  require(least[0] == most[0], "state: the ranks' states were saved after different numbers of steps, ", least[0],
          " to ", most[0]);
  require(least == most, "state: the ranks were given different states");
  state->outcome = std::move(state_->outcome);  // the caller may still look at the last update
  state_ = std::move(state);
  is_added_ = false;
}

void Reducer::load(std::span<const std::byte> bytes) {
  restore([&] {
    auto state = std::make_unique<ReducerState>(state_->setting, state_->tuner);
    state->read(bytes);
    return state;
  });
}

// Either every rank takes its own state as it is, or all merge.
void Reducer::load_all(std::size_t count, const ReadState& read) {
  const auto rank = static_cast<std::size_t>(comm_.rank());
  agree("load_all()");
  if (all_own(comm_, work_, count, [&] { return state_->is_own(read(rank)); })) return load(read(rank));
  restore([&] {
    StateMerge merge(*state_, count);
    for (std::size_t r = 0; r < count; ++r) merge.add(read(r));
    return merge.finish();
  });
}

}  // namespace oktopk
